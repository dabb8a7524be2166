"""The REST interface from the outside, for the agent and the command line."""

from __future__ import annotations

from typing import Any

import httpx

from manager.errors import ManagerUnavailable

API = "/api/v1"


class ManagerClient:
    """Speaks JSON with a manager. Every failure is a ManagerUnavailable whose text says what to do."""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        """``url`` is the manager's, without the API's path; ``transport`` replaces the network (for tests)."""
        self._url = url.rstrip("/")
        self._client = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(10, connect=3),
            transport=transport,
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: str | None = None,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Call ``path`` below /api/v1, with ``body`` as JSON or with JSON as ``content``.

        Any status but success and 304 raises ManagerUnavailable with the problem's detail: a redirect comes from
        something that is not a manager.
        """
        given = {name: value for name, value in (params or {}).items() if value}
        if content is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
        try:
            response = self._client.request(
                method, API + path, json=body, content=content, params=given, headers=headers
            )
        except httpx.HTTPError as error:
            raise ManagerUnavailable(f"the manager at {self._url} does not answer: {error}") from error
        if not response.is_success and response.status_code != httpx.codes.NOT_MODIFIED:
            raise ManagerUnavailable(f"{method} {API}{path}: {_problem(response)}")
        return response

    def get(self, path: str, **params: str) -> Any:
        """The JSON answer of a GET. Raises ManagerUnavailable, also when the answer is not JSON."""
        try:
            return self.request("GET", path, params=params).json()
        except ValueError as error:
            raise ManagerUnavailable(f"{self._url} answers, but not as a manager does: {error}") from error

    def items(self, path: str, limit: int | None = None, **params: str) -> list[Any]:
        """All items of a paginated list, or the first ``limit``."""
        found: list[Any] = []
        cursor = ""
        while True:
            page_size = min(1000, limit - len(found)) if limit is not None else 1000
            page = self.get(path, **params, cursor=cursor, limit=str(page_size))
            found.extend(page["items"])
            cursor = page["next"] or ""
            if not cursor or (limit is not None and len(found) >= limit):
                return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _problem(response: httpx.Response) -> str:
    """Status and detail of a problem+json answer, with its bad fields."""
    try:
        problem = response.json()
        fields = "; ".join(f"{one['field']}: {one['message']}" for one in problem.get("errors", []))
        return f"{response.status_code} {problem['detail']}" + (f" ({fields})" if fields else "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{response.status_code} {response.reason_phrase}"
