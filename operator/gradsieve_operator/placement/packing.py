"""Any placement, if there is one: a search that forgets no possibility."""

from __future__ import annotations

from collections.abc import Iterator

from gradsieve_operator.placement.problem import Problem, Solution, Vector, most, take

BUDGET = 10_000
"""Steps before the search gives up: a quarter of a second."""


def search(problem: Problem, budget: int = BUDGET) -> Solution | None:
    """Return a placement of all pods, None if there is none or the budget is spent before one is found.

    Vector bin packing, depth first:

    1. Look at the nodes one after the other. On each put a *maximal* set of the pods that remain, one to
       which no further pod can be added. That forgets nothing: in any placement a pod of a later node may
       move to an earlier one that has room for it, and what it leaves is only freer.
       Sets that leave least unused come first.
    2. Turn back where a shape no longer fits into what is left, each shape looked at alone, or where the sum
       of a resource is too small; and where the same pods failed from the same node on before.

    Within the budget the answer is exact. Beyond it (thousands of nodes of different sizes, many groups that
    share nodes, and nearly no room) a placement that exists may be missed; the gang waits then.
    """
    return _Search(problem, budget).run()


class _Search:
    def __init__(self, problem: Problem, budget: int) -> None:
        self.problem = problem
        self.budget = budget
        self.failed: set[tuple[int, Vector]] = set()
        # The roomiest nodes first: they are the likeliest to hold many pods.
        alone = [
            [most(free, need, count) if node in eligible else 0 for need, count, eligible in self._shapes()]
            for node, free in enumerate(problem.free)
        ]
        self.order = sorted(range(len(alone)), key=lambda node: (-sum(alone[node]), node))
        self.order = [node for node in self.order if any(alone[node])]
        self.room = _suffix_sums([tuple(alone[node]) for node in self.order], len(problem.needs))
        free = [tuple(max(amount, 0) for amount in problem.free[node]) for node in self.order]
        self.amounts = _suffix_sums(free, len(problem.resources))
        self.weights = [
            sum(count * need[resource] for need, count, _ in self._shapes()) / max(amount, 1) ** 2
            for resource, amount in enumerate(self.amounts[0])
        ]
        self.chosen: list[tuple[int, Vector]] = []

    def _shapes(self) -> Iterator[tuple[Vector, int, frozenset[int]]]:
        return zip(self.problem.needs, self.problem.counts, self.problem.eligible, strict=True)

    def run(self) -> Solution | None:
        if not self._place(0, self.problem.counts):
            return None
        solution: Solution = tuple({} for _ in self.problem.needs)
        for node, counts in self.chosen:
            for shape, count in enumerate(counts):
                if count:
                    solution[shape][node] = count
        return solution

    def _place(self, depth: int, remaining: Vector) -> bool:
        if not any(remaining):
            return True
        self.budget -= 1
        if self.budget <= 0 or (depth, remaining) in self.failed or not self._may_fit(depth, remaining):
            return False
        node = self.order[depth]
        for counts in sorted(self._maximal(node, remaining), key=lambda counts: self._waste(node, counts)):
            self.chosen.append((node, counts))
            left = tuple(have - gone for have, gone in zip(remaining, counts, strict=True))
            if self._place(depth + 1, left):
                return True
            self.chosen.pop()
            if self.budget <= 0:
                return False
        self.failed.add((depth, remaining))
        return False

    def _may_fit(self, depth: int, remaining: Vector) -> bool:
        if any(count > room for count, room in zip(remaining, self.room[depth], strict=True)):
            return False
        for resource, amount in enumerate(self.amounts[depth]):
            needed = sum(
                count * need[resource] for count, need in zip(remaining, self.problem.needs, strict=True)
            )
            if needed > amount:
                return False
        return True

    def _waste(self, node: int, counts: Vector) -> float:
        """Return what a set of pods leaves unused of a node, scarce resources weighing more."""
        left: Vector = self.problem.free[node]
        for count, need in zip(counts, self.problem.needs, strict=True):
            left = take(left, need, count)
        return sum(weight * amount for weight, amount in zip(self.weights, left, strict=True))

    def _maximal(self, node: int, remaining: Vector) -> Iterator[Vector]:
        """Yield the maximal sets of pods that fit on a node."""

        def extend(shape: int, free: Vector, counts: Vector) -> Iterator[Vector]:
            if shape == len(limits):
                full = all(
                    count == limit or not most(free, need, 1)
                    for count, limit, need in zip(counts, limits, self.problem.needs, strict=True)
                )
                if full:
                    yield counts
                return
            need = self.problem.needs[shape]
            for count in range(most(free, need, limits[shape]), -1, -1):
                yield from extend(shape + 1, take(free, need, count), (*counts, count))

        limits = tuple(
            count if node in eligible else 0
            for count, eligible in zip(remaining, self.problem.eligible, strict=True)
        )
        return extend(0, self.problem.free[node], ())


def _suffix_sums(rows: list[Vector], width: int) -> list[Vector]:
    sums = [(0,) * width]
    for row in reversed(rows):
        sums.append(tuple(one + other for one, other in zip(row, sums[-1], strict=True)))
    return sums[::-1]
