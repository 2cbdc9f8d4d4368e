"""Workers' totals as the router's counters: nothing counted twice, nothing lost at a restart."""

from bramley.cachestore.client import StoreClient
from bramley.protos.v1 import worker_pb2
from bramley.router.totals import REASONS, RESULTS, Totals
from bramley.worker.owed import REASONS as WORKER_REASONS


def load(stored: int = 0, owed: int = 0, **refused: int) -> worker_pb2.Load:
    return worker_pb2.Load(snapshots_stored=stored, snapshots_owed=owed, snapshots_refused=refused)


def test_a_report_counts_what_has_grown_since_the_last() -> None:
    totals = Totals()
    assert list(totals.news("a", 1, load(3, queue_full=2))) == [
        ("snapshots_stored_total", "", 3),
        ("snapshots_refused_total", "queue_full", 2),
    ]
    assert list(totals.news("a", 1, load(3, queue_full=2))) == []
    assert list(totals.news("a", 1, load(4, queue_full=2, ram_full=1))) == [
        ("snapshots_stored_total", "", 1),
        ("snapshots_refused_total", "ram_full", 1),
    ]


def test_an_incarnation_begins_at_nothing_and_each_worker_counts_for_itself() -> None:
    totals = Totals()
    assert list(totals.news("a", 1, load(5))) == [("snapshots_stored_total", "", 5)]
    assert list(totals.news("b", 2, load(5))) == [("snapshots_stored_total", "", 5)]
    assert list(totals.news("a", 3, load(2))) == [("snapshots_stored_total", "", 2)]


def test_what_is_owed_is_the_sum_of_the_workers_that_are_there() -> None:
    totals = Totals()
    list(totals.news("a", 1, load(owed=2)))
    list(totals.news("b", 1, load(owed=1)))
    assert totals.owed == 3
    totals.gone("a")
    totals.gone("nobody")
    assert totals.owed == 1
    assert list(totals.news("a", 1, load(owed=2))) == []
    assert totals.owed == 3


def test_a_reason_that_is_not_known_is_other() -> None:
    totals = Totals()
    news = totals.news("a", 1, load(new_one=1, newer_one=2))
    assert list(news) == [("snapshots_refused_total", "other", 3)]


def test_all_that_workers_say_is_known() -> None:
    assert set(WORKER_REASONS) <= set(REASONS)
    assert {"hit", "miss", "late", "failed", "away"} <= set(RESULTS)
    assert StoreClient.__doc__ is not None
    assert all(result in StoreClient.__doc__ for result in RESULTS[:-1])
