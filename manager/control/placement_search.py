"""The search for seats: new VMs are placed by greedy insertion and local search, placed ones move only for a gain.

Nothing here is random or depends on time: searches are bounded by a number of tries.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from manager.control.placement_cost import OTHER_L3, REMOTE_MEMORY, Board

WIDTH = 8  # pCPUs that are looked at for a vCPU, of each cache domain the most inviting ones, at least one
TRIES = 8_000  # estimates in one search
RUNS = 24  # searches from different orders
WORK = 3_000  # as long as riders times pCPUs, over all searches, are no more than that
NODES = 2_500  # steps of the deeper search, fewer in the same way
DEPTH = 8  # riders that are seated anew together
WORST = 16  # riders that are looked at first
CHEAP = 8  # looks at riders that count as one estimate
EPSILON = 1e-9


def match(choices: Sequence[Sequence[int]], held: dict[int, int]) -> dict[int, int]:
    """A pCPU of its own for as many vCPUs as possible (Kuhn's augmenting paths), the first of its choices if free.

    ``held`` has the pCPU of vCPUs that should keep theirs: they lose it only where another cannot do without.
    """
    owner = {pcpu: vcpu for vcpu, pcpu in held.items()}

    def seek(vcpu: int, seen: set[int]) -> bool:
        spare = next((pcpu for pcpu in choices[vcpu] if pcpu not in owner), None)
        if spare is not None:
            owner[spare] = vcpu
            return True
        for pcpu in choices[vcpu]:
            if pcpu not in seen:
                seen.add(pcpu)
                if seek(owner[pcpu], seen):
                    owner[pcpu] = vcpu
                    return True
        return False

    for vcpu in sorted(range(len(choices)), key=lambda vcpu: (len(choices[vcpu]), vcpu)):
        if vcpu not in held:
            seek(vcpu, set())
    return {vcpu: pcpu for pcpu, vcpu in owner.items()}


class Search:
    """A search on one board, bounded by the tries left."""

    def __init__(self, board: Board, tries: int) -> None:
        self.board = board
        self.tries = tries
        ground = board.ground
        self.domains = tuple(ground.l3s)
        self._node_of = {l3: ground.pcpus[pcpus[0]].node for l3, pcpus in ground.l3s.items()}
        self.ideal = min(ground.hardware, default=1.0)

    def options(self, rider: int, domains: Sequence[int]) -> Iterator[int]:
        """The most inviting pCPUs that a rider may sit on; none of its VM's others sits there."""
        board, choices = self.board, self.board.riders[rider].choices
        seats_of_vm = {board.seats[member] for member in board.members[board.riders[rider].vm]}
        width = max(1, WIDTH // len(domains))
        for domain in domains:
            yield from islice(
                (pcpu for pcpu in board.inviting(domain) if pcpu in choices and pcpu not in seats_of_vm), width
            )

    def joining(self, rider: int, pcpu: int) -> float:
        """Estimate of what it costs that a rider joins those on a pCPU of another core than its own."""
        board = self.board
        self.tries -= 1
        bulk = board.bulk[pcpu] + board.weight_at(rider, pcpu)
        return board.change(pcpu, board.riders[rider].demand, 1, bulk)

    def fill(self, riders: Iterable[int], domains: Sequence[int]) -> bool:
        """Seat riders of one VM one by one, where it costs least; whether each found a seat."""
        board = self.board
        for rider in sorted(riders, key=board.narrowness):
            best = min(((self.joining(rider, pcpu), pcpu) for pcpu in self.options(rider, domains)), default=None)
            if best is None:
                return False
            board.move(rider, best[1])
            self.tries -= CHEAP // 2
        return True

    def insert(self, riders: Sequence[int], fallback: dict[int, int]) -> None:
        """Seat riders of one VM, within a cache domain or NUMA node if that is better.

        ``fallback`` has seats that are possible for all of them, where one by one does not come out.
        """
        board = self.board
        best: tuple[float, list[int]] | None = None
        for domains in self._regions(riders):
            if self.fill(riders, domains):
                seats = [board.seats[rider] for rider in riders]
                affected = board.around(*riders)
                cost = board.cost(affected)
                slowest = max(board.stretch(rider) for rider in riders)
                self.clear(riders)
                cost -= board.cost(affected)
                if best is None or cost < best[0]:
                    best = (cost, seats)
                if slowest <= self.ideal * (1 + EPSILON):
                    break
            else:
                self.clear(riders)
        board.reseat(riders, best[1] if best else [fallback[rider] for rider in riders])

    def clear(self, riders: Iterable[int]) -> None:
        """Take riders off their seats."""
        for rider in riders:
            if self.board.seats[rider] >= 0:
                self.board.move(rider, -1)

    def _regions(self, riders: Sequence[int]) -> list[tuple[int, ...]]:
        """Sets of cache domains to try for riders of one VM: the two best single ones, a NUMA node, all."""
        board, vm, size = self.board, self.board.riders[riders[0]].vm, len(riders)
        if len(self.domains) == 1 or size == 1 or size < len(board.members[vm]):
            return [self.domains]
        memory, ground = board.memory[vm], board.ground

        def appeal(domain: int) -> float:
            far = REMOTE_MEMORY if memory and self._node_of[domain] not in memory else 1.0
            return far * board.lure[board.inviting(domain)[size - 1]]

        best = self._nth_lure(self.domains, size)
        roomy = [domain for domain in self.domains if len(ground.l3s[domain]) >= size]
        single = sorted((appeal(domain), domain) for domain in roomy)[:2]
        regions: list[tuple[int, ...]] = [(domain,) for _, domain in single]
        if single and single[0][0] <= best * OTHER_L3:
            return regions  # being together is worth more than what is better elsewhere
        nodes = [tuple(domain for domain in self.domains if self._node_of[domain] == node) for node in ground.nodes]
        wide = [region for region in nodes if 1 < len(region) < len(self.domains)]
        fits = [region for region in wide if sum(len(ground.l3s[domain]) for domain in region) >= size]
        regions += sorted(fits, key=lambda region: (self._nth_lure(region, size), region))[:1]
        return [*regions, self.domains]

    def _nth_lure(self, domains: Sequence[int], size: int) -> float:
        lure = self.board.lure
        return sorted(lure[pcpu] for domain in domains for pcpu in self.board.ground.l3s[domain])[size - 1]

    def attempt(self, moves: Sequence[tuple[int, int]]) -> bool:
        """Make these moves if that lowers the cost."""
        board = self.board
        riders = [rider for rider, _ in moves]
        back = [board.seats[rider] for rider in riders]
        affected = board.around_moves(moves)
        before = board.cost(affected)
        board.reseat(riders, [pcpu for _, pcpu in moves])
        if board.cost(affected) < before * (1 - EPSILON):
            return True
        board.reseat(riders, back)
        return False

    def improve(self, free: Sequence[int]) -> None:
        """Relocate and swap free riders, the worst off first, until nothing lowers the cost or no tries are left."""
        board, among = self.board, frozenset(free)
        reach = WORST
        while self.tries > 0:
            going = False
            for rider in sorted(free, key=lambda rider: (-board.stretch(rider), rider))[:reach]:
                if self.tries <= 0:
                    return
                if self._relocate(rider) or self._swap(rider, among):
                    going = True
            if not going:
                if reach >= len(free):
                    return
                reach *= 4

    def _relocate(self, rider: int) -> bool:
        board = self.board
        seat = board.seats[rider]
        core = board.ground.cores[seat]
        saved = -board.change(seat, -board.riders[rider].demand, -1, board.bulk_without(rider))
        estimates = [
            (self.joining(rider, pcpu) - saved, pcpu)
            for pcpu in self.options(rider, self.domains)
            if board.ground.cores[pcpu] != core
        ]
        best = min(estimates, default=None)
        if best is not None and best[0] < 0 and self.attempt([(rider, best[1])]):
            return True
        if len(board.occupants[seat]) < 2:
            return False
        seats_of_vm = {board.seats[member] for member in board.members[board.riders[rider].vm]}
        siblings = [
            pcpu
            for pcpu in board.ground.threads[core]
            if pcpu not in seats_of_vm and pcpu in board.riders[rider].choices
        ]
        return any(self.attempt([(rider, pcpu)]) for pcpu in siblings)

    def swap_estimate(self, rider: int, other: int) -> float:
        """Estimate of what the cost changes by when two riders on different cores swap their seats."""
        board = self.board
        self.tries -= 1
        seat, there = board.seats[rider], board.seats[other]
        more = board.riders[other].demand - board.riders[rider].demand
        here = board.bulk_without(rider) + board.weight_at(other, seat)
        away = board.bulk_without(other) + board.weight_at(rider, there)
        return board.change(seat, more, 0, here) + board.change(there, -more, 0, away)

    def partners(self, rider: int, among: Container[int]) -> Iterator[int]:
        """Those of ``among`` with which a rider may swap seats and would fare better, if all else stayed as it is."""
        board = self.board
        seat, vm, choices = board.seats[rider], board.riders[rider].vm, board.riders[rider].choices
        seats_of_vm = {board.seats[member] for member in board.members[vm]}
        neighbours = {board.riders[occupant].vm for occupant in board.occupants[seat]} - {vm}
        limit = board.stretch(rider) * (1 - EPSILON) / board.ease[rider]
        self.tries -= 1 + len(board.gauge) // (4 * CHEAP)
        for there, gauge in enumerate(board.gauge):
            if gauge >= limit or there == seat or there not in choices:
                continue
            self.tries -= len(board.occupants[there]) // CHEAP
            for other in sorted(board.occupants[there]):
                about = board.riders[other]
                fits = about.vm == vm or (there not in seats_of_vm and about.vm not in neighbours)
                if fits and other in among and seat in about.choices:
                    yield other

    def _swap(self, rider: int, among: Container[int]) -> bool:
        board = self.board
        cores, core = board.ground.cores, board.ground.cores[board.seats[rider]]
        estimates: list[tuple[float, int]] = []
        for other in self.partners(rider, among):
            if cores[board.seats[other]] != core:
                estimates.append((self.swap_estimate(rider, other), other))
            elif self.attempt([(rider, board.seats[other]), (other, board.seats[rider])]):
                return True
        best = min(estimates, default=None)
        return (
            best is not None
            and best[0] < 0
            and self.attempt([(rider, board.seats[best[1]]), (best[1], board.seats[rider])])
        )


class Arrangement:
    """Seats for the riders in ``free`` such that the worst stretch is least, and then the rest; others stay.

    ``fallback`` has seats for all of them that are possible, if not good. VMs from number ``rated`` on do not matter
    themselves.
    """

    def __init__(self, board: Board, free: Sequence[int], fallback: dict[int, int], rated: int) -> None:
        self._board = board
        self._free = list(free)
        self._fallback = fallback
        self._search = Search(board, TRIES)
        self._vms: dict[int, list[int]] = {}
        for rider in free:
            self._vms.setdefault(board.riders[rider].vm, []).append(rider)
        self._rated = range(rated)
        self._nodes = 0

    def make(self) -> None:
        """Several searches from different orders of VMs, and from the best of them a deeper one.

        After the third order those go first that came off worst before.
        """
        if not self._free:
            return
        board, vms = self._board, self._vms
        work = len(self._free) * len(board.gauge)
        demands = {vm: [board.riders[rider].demand for rider in riders] for vm, riders in vms.items()}
        keys: list[Callable[[int], tuple[int, ...]]] = [
            lambda vm: (-sum(demands[vm]), vm),
            lambda vm: (-len(demands[vm]), -max(demands[vm]), vm),
            lambda vm: (-max(demands[vm]), vm),
        ]
        order: list[int] = []
        results: list[tuple[tuple[float, float], list[int]]] = []
        for run in range(min(RUNS, max(1, WORK // work))):
            if run < len(keys):
                order = sorted(vms, key=keys[run])
            else:
                order.sort(key=lambda vm: -board.vm_stretch(vm))
            self._search.clear(self._free)
            for vm in order:
                self._search.insert(vms[vm], self._fallback)
            self._search.tries = TRIES
            self._search.improve(self._free)
            results.append((self._score(), self._seats()))
        score, seats = min(results, key=itemgetter(0))
        board.reseat(self._free, seats)
        self._nodes = min(NODES, NODES * WORK // work)
        while self._nodes > 0 and (better := self._dig(score)):
            score = better
        for riders in vms.values():
            self._tidy(riders)

    def _tidy(self, riders: list[int]) -> None:
        """Give the lower pCPUs to the lower vCPUs of a VM where that costs nothing, for those who read it."""
        board = self._board
        seats = [board.seats[rider] for rider in riders]
        ordered = sorted(seats)
        if ordered == seats or any(
            seat not in board.riders[rider].choices for rider, seat in zip(riders, ordered, strict=True)
        ):
            return
        affected = board.around(*riders)
        before = board.cost(affected)
        board.reseat(riders, ordered)
        if board.cost(affected) > before * (1 + EPSILON):
            board.reseat(riders, seats)

    def _score(self) -> tuple[float, float]:
        board = self._board
        return max(board.vm_stretch(vm) for vm in self._rated), board.cost(range(len(board.gauge)))

    def _seats(self) -> list[int]:
        return [self._board.seats[rider] for rider in self._free]

    def _dig(self, score: tuple[float, float]) -> tuple[float, float] | None:
        """Seat few riders anew in the best of all ways, those of the worst core with those of another one; the new
        score if that is better.
        """
        board = self._board
        seats = self._seats()
        for riders in self._groups():
            solutions: list[list[int]] = []
            self._search.clear(riders)
            self._seek(riders, 0, score[0], solutions)
            board.reseat(self._free, seats)
            if not solutions:
                if self._nodes <= 0:
                    return None
                continue
            board.reseat(riders, solutions[-1])
            scored, better = self._score(), self._seats()
            self._search.tries = self._nodes
            self._search.improve(self._free)
            if self._score() < scored:
                scored = self._score()
            else:
                board.reseat(self._free, better)
            if scored < score:
                return scored
            board.reseat(self._free, seats)
        return None

    def _groups(self) -> Iterator[list[int]]:
        """Few riders each, with those of the core on which the worst one sits."""
        board, loose = self._board, set(self._free)
        ground = board.ground

        if len(loose) <= DEPTH:
            yield sorted(loose, key=board.narrowness)
        worst = max(self._free, key=lambda rider: (board.stretch(rider), -rider))
        home = ground.cores[board.seats[worst]]
        cores = range(len(ground.threads))
        for core in sorted(cores, key=lambda core: (board.busy[core] / len(ground.threads[core]), core)):
            pcpus = [pcpu for of_core in {home, core} for pcpu in ground.threads[of_core]]
            riders = [rider for pcpu in pcpus for rider in board.occupants[pcpu] if rider in loose]
            if len(riders) <= DEPTH:
                yield sorted(riders, key=board.narrowness)

    def _seek(self, riders: Sequence[int], depth: int, limit: float, solutions: list[list[int]]) -> float:
        """Branch and bound: add seats whose worst stretch is below ``limit`` to ``solutions``, always better ones.

        Returns the limit that has been reached.
        """
        board, search = self._board, self._search
        if depth == len(riders):
            solutions.append([board.seats[rider] for rider in riders])
            return max(board.vm_stretch(board.riders[rider].vm) for rider in riders)
        rider, unsettled = riders[depth], {board.riders[later].vm for later in riders[depth + 1 :]}
        for _, pcpu in sorted((search.joining(rider, pcpu), pcpu) for pcpu in search.options(rider, search.domains)):
            self._nodes -= 1
            if self._nodes < 0:
                break
            board.move(rider, pcpu)
            affected = (other for at in board.around(rider) for other in board.occupants[at])
            if max(board.least_stretch(other, unsettled) for other in affected) < limit * (1 - EPSILON):
                limit = self._seek(riders, depth + 1, limit, solutions)
            board.move(rider, -1)
        return limit
