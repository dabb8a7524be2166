"""Users, and their passwords."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from werkzeug.test import TestResponse

from manager.errors import SignInRefused
from manager.store.sessions import DEFAULT_LIMITS, SignedIn, sign_in
from tests.api.conftest import START, Api

pytestmark = pytest.mark.usefixtures("quick_passwords")

ALICE = {"name": "alice", "role": "operator", "password": "correct horse"}


@dataclass
class Person:
    """Somebody who uses the interface in a session."""

    api: Api
    name: str = "alice"
    password: str = "correct horse"
    session: SignedIn = field(init=False)

    def __post_init__(self) -> None:
        self.session = sign_in(self.api.database, self.name, self.password, "192.0.2.7", START, DEFAULT_LIMITS)

    def call(self, method: str, path: str, body: Any = None) -> TestResponse:
        client = self.api.app.test_client()
        client.set_cookie("equipoise_session", self.session.secret)
        headers = {"X-CSRF-Token": self.session.csrf_token}
        return client.open(f"/api/v1{path}", method=method, json=body, headers=headers, buffered=True)


@pytest.fixture
def alice(sqlite_api: Api) -> Person:
    sqlite_api.ok("POST", "/users", ALICE)
    return Person(sqlite_api)


def test_users_are_made_changed_and_removed(api: Api) -> None:
    made = api.call("POST", "/users", ALICE)
    assert (made.status_code, made.headers["ETag"]) == (201, '"1.1"')
    api.refused(409, "POST", "/users", ALICE)
    created = "2026-03-01T12:00:00Z"
    shown = {"name": "alice", "role": "operator", "created_at": created, "updated_at": created, "signed_in_at": None}
    assert made.get_json() == api.ok("GET", "/users/alice") == shown
    Person(api)
    assert api.ok("GET", "/users")["items"] == [shown | {"signed_in_at": created}]
    api.refused(412, "PUT", "/users/alice", {"role": "viewer"}, If_Match='"1.2"')
    assert api.ok("PUT", "/users/alice", {"role": "viewer"}, If_Match='"1.1"')["role"] == "viewer"
    api.refused(412, "DELETE", "/users/alice", If_Match='"1.1"')
    api.ok("DELETE", "/users/alice")
    for method, path, body in (
        ("GET", "/users/alice", None),
        ("PUT", "/users/alice", {"role": "viewer"}),
        ("PUT", "/users/alice/password", {"password": "long enough"}),
        ("DELETE", "/users/alice", None),
    ):
        api.refused(404, method, path, body)


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        ({"password": "too short"}, "password"),
        ({"password": "x" * 201}, "password"),
        ({"role": "host"}, "role"),
        ({"name": "a b"}, "name"),
    ],
)
def test_a_user_that_makes_no_sense_is_refused(sqlite_api: Api, changes: dict[str, str], bad: str) -> None:
    problem = sqlite_api.refused(422, "POST", "/users", ALICE | changes)
    assert problem["field"] == bad
    assert "too short" not in str(problem), "no answer quotes a password"
    assert sqlite_api.ok("GET", "/users")["items"] == []


def test_what_is_answered_holds_no_hash(alice: Person) -> None:
    texts = [alice.api.call("GET", path).get_data(as_text=True) for path in ("/users", "/users/alice", "/audit")]
    assert not any("scrypt" in text or ALICE["password"] in text for text in texts)


def test_a_user_has_the_rights_of_its_role(alice: Person) -> None:
    assert alice.call("PUT", "/vms/a", {"class": "batch"}).status_code == 201
    response = alice.call("GET", "/users")
    assert response.get_json()["detail"] == "user 'alice' has role operator; this needs role admin"


def test_another_role_and_removal_end_sessions(alice: Person) -> None:
    alice.api.ok("PUT", "/users/alice", {"role": "operator"})
    assert alice.call("GET", "/vms").status_code == 200, "it had that role"
    alice.api.ok("PUT", "/users/alice", {"role": "viewer"})
    assert alice.call("GET", "/vms").status_code == 401
    again = Person(alice.api)
    alice.api.ok("DELETE", "/users/alice")
    assert again.call("GET", "/vms").status_code == 401


def test_the_own_password_is_changed_with_the_present_one(alice: Person) -> None:
    new = {"password": "battery staple"}
    for wrong in (None, "", "wrong"):
        response = alice.call("PUT", "/users/alice/password", new | {"current_password": wrong})
        assert (response.status_code, response.get_json()["field"]) == (422, "current_password")
    assert alice.call("GET", "/vms").status_code == 200
    response = alice.call("PUT", "/users/alice/password", new | {"current_password": ALICE["password"]})
    assert response.status_code == 204
    assert alice.call("GET", "/vms").status_code == 401, "every session ends"
    with pytest.raises(SignInRefused):
        Person(alice.api)
    assert Person(alice.api, password="battery staple").call("GET", "/vms").status_code == 200


def test_whoever_guesses_the_current_password_has_to_wait(alice: Person) -> None:
    body = {"password": "battery staple", "current_password": "wrong"}
    for _ in range(5):
        assert alice.call("PUT", "/users/alice/password", body).status_code == 422
    response = alice.call("PUT", "/users/alice/password", body | {"current_password": ALICE["password"]})
    assert (response.status_code, response.headers["Retry-After"]) == (429, "30")
    assert "try again in 30 s" in response.get_json()["detail"]


def test_a_password_of_others_is_for_administrators(alice: Person) -> None:
    api, new = alice.api, {"password": "battery staple"}
    api.ok("POST", "/users", {"name": "root", "role": "admin", "password": "another horse"})
    api.ok("POST", "/tokens", {"name": "alice", "role": "viewer"})
    response = alice.call("PUT", "/users/root/password", new | {"current_password": ALICE["password"]})
    assert response.get_json()["detail"] == "user 'alice' has role operator; this needs role admin"
    root = Person(api, "root", "another horse")
    assert root.call("PUT", "/users/alice/password", new).status_code == 204
    assert root.call("PUT", "/users/root/password", new).status_code == 422, "an administrator's own, too"
    assert alice.call("GET", "/vms").status_code == 401


def test_a_token_of_the_same_name_is_not_the_user(alice: Person) -> None:
    made = alice.api.ok("POST", "/tokens", {"name": "alice", "role": "viewer"})
    alice.api.secrets["namesake"] = made["token"]
    body = {"password": "battery staple", "current_password": ALICE["password"]}
    alice.api.refused(403, "PUT", "/users/alice/password", body, role="namesake")


@pytest.fixture
def admins(api: Api) -> Api:
    for name in ("ann", "bob"):
        api.ok("POST", "/users", ALICE | {"name": name, "role": "admin"})
    return api


@pytest.mark.parametrize(("method", "body"), [("PUT", {"role": "viewer"}), ("DELETE", None)])
def test_the_last_administrator_stays(admins: Api, method: str, body: Any) -> None:
    admins.ok(method, "/users/ann", body)
    problem = admins.refused(409, method, "/users/bob", body)
    assert "'bob' is the last administrator" in problem["detail"]
    assert admins.ok("GET", "/users/bob")["role"] == "admin"
    assert admins.ok("PUT", "/users/bob", {"role": "admin"})["role"] == "admin"
    admins.ok("POST", "/users", ALICE | {"role": "admin"})
    admins.ok(method, "/users/bob", body)


def test_of_two_administrators_who_give_it_up_at_once_one_stays(admins: Api) -> None:
    def give_up(name: str) -> int:
        return admins.call("PUT", f"/users/{name}", {"role": "viewer"}).status_code

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(give_up, ("ann", "bob"))) == [200, 409]
