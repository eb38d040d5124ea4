"""What tests of outages share: a clock that is moved by hand, and whether a broker has answered by it."""

from tokenmill.app.broker_contact import Contact


class Hands:
    now = 1000.0

    def __call__(self) -> float:
        return self.now

    time = monotonic = __call__

    def turn(self, seconds: float) -> None:
        self.now += seconds

    def contact(self) -> Contact:
        return Contact(self, self)
