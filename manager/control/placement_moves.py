"""Which vCPUs of placed VMs move after all: only for a gain that is worth it, and few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from manager.control.placement_cost import Board
from manager.control.placement_search import Search

LOOKS = 100  # estimates, or what takes as long, until a move is found
MOVERS = 8  # vCPUs that are looked at to relieve a VM
CANDIDATES = 4  # of a kind that are judged exactly
STEPS = 256  # moves in one go

Moves = Sequence[tuple[int, int]]


class Rebalancing:
    """Moves that lower the worst stretch of the VMs whose stretch they change by more than ``min_gain``.

    ``placed`` has the seat of riders that were placed before; of these no more than ``budget`` leave it. ``rated`` is
    the number of VMs that matter, the first ones.
    """

    def __init__(self, board: Board, placed: Mapping[int, int], rated: int, min_gain: float, budget: int) -> None:
        self._board = board
        self._placed = placed
        self._rated = rated
        self._keep = 1 - min_gain
        self._budget = budget
        self._search = Search(board, LOOKS)
        self._movable = frozenset(index for index, rider in enumerate(board.riders) if len(rider.choices) > 1)

    def make(self) -> None:
        """Move who is to move, those of the worst VMs first, until a look at all finds nothing.

        All costs depend on the seats alone, so the next call finds nothing either.
        """
        if self._budget <= 0 and len(self._placed) == len(self._board.riders):
            return
        for _ in range(STEPS):
            if not self._step():
                return

    def _step(self) -> bool:
        board, search = self._board, self._search
        search.tries = LOOKS
        stretches = [(-board.vm_stretch(vm), vm) for vm in range(self._rated)]
        for stretch, vm in sorted(stretches):
            limit = -stretch * self._keep
            if limit <= search.ideal or search.tries <= 0:
                return False
            if self._relieve(vm, limit):
                return True
        return False

    def _relieve(self, vm: int, limit: float) -> bool:
        """Bring a VM's stretch below ``limit``: by one vCPU that moves, two that swap, or several of one VM."""
        board = self._board
        slow = [member for member in board.members[vm] if board.stretch(member) >= limit]
        cores = sorted({board.ground.cores[board.seats[member]] for member in slow})
        beside = [
            rider
            for core in cores
            for pcpu in board.ground.threads[core]
            for rider in board.occupants[pcpu]
            if rider in self._movable
        ]
        # Its own first, then the heaviest.
        beside.sort(key=lambda rider: (board.riders[rider].vm != vm, -board.riders[rider].demand, rider))
        movers = beside[:MOVERS]
        return (
            any(self._try(moves) for moves in self._relocations(movers, limit))
            or any(self._try(moves) for moves in self._swaps(movers, limit))
            or any(self._reseat(riders) for riders in self._crews(vm, movers))
        )

    def _relocations(self, movers: Sequence[int], limit: float) -> list[Moves]:
        board, search = self._board, self._search
        estimates = [
            (search.joining(rider, pcpu), rider, pcpu)
            for rider in movers
            if search.tries > 0
            for pcpu in search.options(rider, search.domains)
            if board.lure[pcpu] < limit
        ]
        return [[(rider, pcpu)] for _, rider, pcpu in sorted(estimates)[:CANDIDATES]]

    def _swaps(self, movers: Sequence[int], limit: float) -> list[Moves]:
        board, search = self._board, self._search
        estimates = [
            (search.swap_estimate(rider, other), rider, other)
            for rider in movers
            if search.tries > 0
            for other in search.partners(rider, self._movable)
            if self._reach(rider, board.seats[other]) < limit
        ]
        return [
            [(rider, board.seats[other]), (other, board.seats[rider])]
            for _, rider, other in sorted(estimates)[:CANDIDATES]
        ]

    def _reach(self, rider: int, pcpu: int) -> float:
        """The stretch that a rider would have there in the place of one like it."""
        board = self._board
        return board.gauge[pcpu] * board.ease[rider] * board.distance_at(rider, pcpu)

    def _crews(self, vm: int, movers: Sequence[int]) -> Iterator[list[int]]:
        """Riders of one VM that might move together: of this VM all, then of those beside it."""
        board = self._board
        if self._search.tries <= 0:
            return
        whole = [member for member in board.members[vm] if member in self._movable]
        if len(whole) > 1:
            yield whole
        others = sorted({board.riders[rider].vm for rider in movers} - {vm})
        for other in [vm, *others][:CANDIDATES]:
            crew = [rider for rider in movers if board.riders[rider].vm == other]
            if len(crew) > 1 and crew != whole:
                yield crew

    def _reseat(self, riders: Sequence[int]) -> bool:
        """Try to seat riders of one VM anew together, each where it is now if nothing is better."""
        board = self._board
        before = [board.seats[rider] for rider in riders]
        self._search.insert(riders, dict(zip(riders, before, strict=True)))
        after = [board.seats[rider] for rider in riders]
        board.reseat(riders, before)
        staying = set(before) & set(after)
        going = [rider for rider, seat in zip(riders, before, strict=True) if seat not in staying]
        seats = [seat for seat in after if seat not in staying]
        return self._try(list(zip(going, seats, strict=True)))

    def _try(self, moves: Moves) -> bool:
        """Make these moves if they may be made and gain enough."""
        board = self._board
        riders = [rider for rider, _ in moves]
        back = [board.seats[rider] for rider in riders]
        if self._search.tries <= 0 or any(pcpu not in board.riders[rider].choices for rider, pcpu in moves):
            return False
        concerned = {board.riders[rider].vm for pcpu in board.around_moves(moves) for rider in board.occupants[pcpu]}
        self._search.tries -= 4 + len(concerned)
        before = {vm: board.vm_stretch(vm) for vm in concerned if vm < self._rated}
        board.reseat(riders, [pcpu for _, pcpu in moves])
        after = {vm: board.vm_stretch(vm) for vm in before}
        changed = [vm for vm in before if after[vm] != before[vm]]
        worst = max((before[vm] for vm in changed), default=0.0)
        if changed and max(after[vm] for vm in changed) < worst * self._keep and self._affordable():
            return True
        board.reseat(riders, back)
        return False

    def _affordable(self) -> bool:
        return sum(self._board.seats[rider] != seat for rider, seat in self._placed.items()) <= self._budget
