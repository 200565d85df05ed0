"""What several rules for one key mean, written so that it is easy to believe."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RulesModel:
    """Every request and every admission ever: all rules in force are looked at for each."""

    named: dict[tuple[int, int], int] = field(default_factory=dict)
    admitted: list[list[int]] = field(default_factory=list)

    def in_force(self, now: int) -> list[tuple[int, int]]:
        """The rules that are left after each, in turn, was not named for the longest span."""
        left = dict(self.named)
        while left:
            longest = max(span for _, span in left)
            gone = [rule for rule, at in left.items() if at + longest <= now]
            if not gone:
                break
            for rule in gone:
                del left[rule]
        return list(left)

    def used(self, span: int, now: int) -> int:
        return sum(units for at, units in self.admitted if now - span < at)

    def ask(self, units: int, limit: int, span: int, now: int) -> bool:
        self.named = {rule: self.named[rule] for rule in self.in_force(now)}
        longest = max((span for _, span in self.named), default=0)
        self.admitted = [row for row in self.admitted if now - longest < row[0]]
        self.named[limit, span] = now
        charge = min(units, *(limit for limit, _ in self.named))
        if any(self.used(span, now) + charge > limit for limit, span in self.named):
            return False
        self.admitted.append([now, charge])
        return True
