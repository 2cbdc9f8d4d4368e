"""Keeps a fault to those whom it concerns: one row, one request, or one cohort.

With the engine's thread, which ends with the process, the only place that catches everything.
"""

import logging
from collections.abc import Callable, Sequence

from bramley.common.errors import BramleyError
from bramley.common.logs import facts
from bramley.worker.engine import faults
from bramley.worker.engine.seating import Seating
from bramley.worker.request import Request

log = logging.getLogger(__name__)


class Containment:
    """Runs parts of a step.

    Args:
        seating: whose memory can be given back.
        fail: ends a request with an error.
        lose: forgets a cohort's flight, and ends the requests that lost their seats.
    """

    def __init__(
        self,
        seating: Seating,
        fail: Callable[[Request, BramleyError], None],
        lose: Callable[[int, BramleyError], None],
    ) -> None:
        self._seating = seating
        self._fail = fail
        self._lose = lose

    def request(self, request: Request, work: Callable[[], None]) -> None:
        """Do what concerns one request, which ends if it fails; its cohort with it, if torn."""
        try:
            work()
        except BramleyError as error:
            log.info("a request is refused", extra=facts(request=request.id, error=error.message))
            self._fail(request, error)
        except Exception as error:
            log.exception("a request failed", extra=facts(request=request.id))
            number = self._seating.numbers.get(request.slot)
            if number is not None and self._is_torn(number):
                self._lose(number, faults.told(error))
                return
            if faults.is_lack_of_memory(error):
                self._give_back()
            self._fail(request, faults.told(error))

    def cohort(self, number: int, work: Callable[[], None], *, can_wait: bool = True) -> bool:
        """Do part of a step for one cohort.

        A lack of memory is met by giving back what nobody needs, and one more try; then the
        newest request of the cohort ends. Any other fault leaves the cohort's state unknown:
        all of its requests end.

        Args:
            number: of the cohort.
            work: may be done again, in a later step as well.
            can_wait: otherwise it may not: without it every request would miss a token.

        Returns:
            Whether it was done.
        """
        try:
            work()
        except Exception as error:
            log.exception("a step failed", extra=facts(cohort=self._seating.cohorts.get(number)))
            if self._is_torn(number) or not faults.is_lack_of_memory(error):
                self._lose(number, faults.told(error))
                return False
            first = error
        else:
            return True
        try:
            self._seating.release_memory()
            self._seating.cohorts[number].evaluate()
            work()
        except Exception as error:
            log.exception("it failed again, after memory was given back")
            end = self._run_short if can_wait and not self._is_torn(number) else self._lose
            end(number, faults.told(error if faults.is_lack_of_memory(error) else first))
            return False
        return True

    def aside(self, work: Callable[[], None], fail: Callable[[BramleyError], None]) -> None:
        """Do what concerns no seat; ``fail`` ends those whom it concerns, if it fails."""
        try:
            work()
        except BramleyError as error:
            fail(error)
        except Exception as error:
            log.exception("what was computed aside failed")
            fail(faults.told(error))
            if faults.is_lack_of_memory(error):
                self._give_back()

    def _is_torn(self, number: int) -> bool:
        cohort = self._seating.cohorts.get(number)
        return cohort is not None and cohort.table.is_torn

    def _give_back(self) -> None:
        try:
            self._seating.release_memory()
        except Exception:
            log.exception("there was no memory to give memory back")

    def _run_short(self, number: int, error: BramleyError) -> None:
        try:
            self._seating.cohorts[number].evaluate()  # is the state what its lengths say?
        except Exception:
            log.exception("the cohort's state is lost")
            self._lose(number, error)
            return
        seated = self._seated(number)
        if seated:
            self._fail(max(seated, key=lambda one: one.arrived_s), error)

    def _seated(self, number: int) -> Sequence[Request]:
        numbers = self._seating.numbers
        return [one for one in self._seating.slots.seated if numbers[one.slot] == number]
