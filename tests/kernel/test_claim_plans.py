"""A claim reads little, whatever else the table holds: ordered index walks, and few of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from subprocess import run as run_command
from sys import executable

import psycopg
import pytest
from django.db import connection

from benchmarks.crowding import CROWDS, NAME, QUEUE, insert
from django_durable import store
from django_durable.choices import OnDuplicate, StepKind, StepStatus
from django_durable.models import DeadLetter
from django_durable.store import claiming
from tests.kernel import world
from tests.kernel.plans import Call, assert_seeks, explain, nodes, watched

ROWS = 20_000
SLOTS = 20
BY = world.owner()
# What a claim of 20 may read: some more than it takes, and the probes for keys.
FEW = 250


@pytest.fixture
def db(transactional_db: None) -> Iterator[None]:
    """Tables whose sizes and statistics are real, as no transaction can have them."""
    world.empty_tables()
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_job CASCADE; TRUNCATE durable_queue, durable_start")


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_job")


def claimer() -> store.Claims:
    scope = store.Scope(frozenset({NAME}), excluded_queues=frozenset({"foreign"}))
    return store.Claims(scope, world.owner())


def enqueue(count: int = SLOTS) -> None:
    new = world.new_job(NAME, queue_name=QUEUE)
    store.enqueue_many(connection, [new for _ in range(count)])


def look_and_claim(claims: store.Claims, slots: int = SLOTS) -> list[store.Claim]:
    claims.look(connection)
    return claims.claim(connection, slots)


def assert_all_seek(
    calls: list[Call], rows: int, *, is_analyzed: bool, table: str = "durable_job"
) -> None:
    """A worker's plans must hold whatever is known; what is planned for once may sort a little."""
    assert calls
    for call in calls:
        for misled in (False, True):
            assert_seeks(call, generic=True, rows=rows, table=table, misled=misled)
        if is_analyzed:
            assert_seeks(call, generic=False, rows=rows, table=table)


@pytest.mark.parametrize("case", CROWDS)
def test_a_claim_seeks_its_jobs_beside(db: None, case: str) -> None:
    """Also right after the rows came, when the statistics know nothing of them."""
    CROWDS[case].fill(connection, ROWS)
    for is_analyzed in (False, True):
        enqueue(3 * SLOTS)
        with watched() as calls:
            # More than there is, so that every way to look is taken.
            claimed = look_and_claim(claimer(), 4 * SLOTS)
        ours = [claim for claim in claimed if claim.priority == 0 and claim.queue_name == QUEUE]
        assert len(ours) == 3 * SLOTS
        names = {name for name, _params in calls}
        assert {"find_lanes", "find_budgets"} < names
        assert names & {"claim", "claim_fair"}
        assert_all_seek(calls, 4 * FEW, is_analyzed=is_analyzed)
        analyze()


def test_a_claim_of_jobs_with_keys_seeks_them(db: None) -> None:
    """Many keys with something due, of which each claim visits a few."""
    insert(connection, ROWS, keys=ROWS // 4)
    for is_analyzed in (False, True):
        claims = claimer()
        with watched() as calls:
            claimed = look_and_claim(claims)
        assert len({claim.concurrency_key for claim in claimed}) == SLOTS
        assert {"keyed", "lock_budgets", "count_budgets", "claim_listed"} <= {
            name for name, _params in calls
        }
        assert_all_seek(calls, 2 * FEW, is_analyzed=is_analyzed)
        analyze()


def test_a_claim_in_limited_queues_seeks_its_jobs(db: None) -> None:
    insert(connection, ROWS, queue="other")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO durable_queue (name, max_running) VALUES ('other', 30)")
    for is_analyzed in (False, True):
        with watched() as calls:
            assert len(look_and_claim(claimer(), 10)) == 10
        assert {"count_budgets", "peek_limited", "claim_listed"} <= {name for name, _p in calls}
        assert_all_seek(calls, FEW, is_analyzed=is_analyzed)
        analyze()


def rated(*names: str, limit: int = SLOTS) -> store.Claims:
    rates = {name: store.TypeRate(name, limit, 60) for name in names}
    limits = dict.fromkeys(names)
    return store.Claims(store.Scope(frozenset({NAME, *names}), limits=limits, rates=rates), BY)


def log_many_starts(budget: str) -> None:
    """Log starts of this budget, some of them past, and of many others."""
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO durable_start (budget, moment, starts, total, expires_at)
            SELECT
                CASE WHEN g %% 2 = 0 THEN %(budget)s ELSE 'type:' || g END,
                statement_timestamp() - (%(rows)s - g) * interval '1 hour', 1, g,
                statement_timestamp() + interval '1 day'
            FROM generate_series(1, %(rows)s) AS g""",
            {"budget": budget, "rows": ROWS},
        )


def test_a_claim_under_rates_seeks_its_jobs_and_its_starts(db: None) -> None:
    insert(connection, ROWS, name="paced")
    insert(connection, ROWS, name="paced keyed", keys=3, series=1)
    insert(connection, ROWS, queue="other", series=2)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO durable_queue (name, rate_limit) VALUES ('other', '20/m')")
        cursor.execute("SELECT hashtextextended('key-1', 0)")
        for budget in ("type:paced", "queue:other", f"key:{cursor.fetchone()[0]}"):
            log_many_starts(budget)
    for is_analyzed in (False, True):
        claims = rated("paced", "paced keyed")
        with watched() as calls:
            # Until nothing has room any more, and what is free goes on.
            taken = [claim for _ in range(6) for claim in look_and_claim(claims, 3 * SLOTS)]
        enqueue()
        with watched() as more:
            assert len(look_and_claim(claims, 2 * SLOTS)) == SLOTS
        assert len(taken) > 3 * SLOTS
        assert {"count_budgets", "keyed", "peek_limited", "log_starts", "find_due_lanes"} <= {
            name for name, _params in calls
        }
        for table in ("durable_job", "durable_start"):
            assert_all_seek(calls + more, 2 * FEW, is_analyzed=is_analyzed, table=table)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM durable_start WHERE moment > now() - interval '1 hour'")
            cursor.execute("ANALYZE durable_start")
        analyze()


def test_late_jobs_are_sought_beside_others(db: None) -> None:
    insert(connection, ROWS)
    insert(connection, ROWS, due="30 days", series=1)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE durable_job SET start_by = run_after + interval '1 day' WHERE due_at > now()"
        )
    for is_analyzed in (False, True):
        late = [world.enqueue(options={"start_within": 0.0}) for _ in range(5)]
        with watched() as calls:
            found, _queues = store.cancel_late(connection, keep=world.KEEP, limit=100)
        assert sorted(found) == sorted(late)
        assert_all_seek(calls, FEW, is_analyzed=is_analyzed)
        analyze()


def test_the_other_verbs_seek_their_jobs(db: None) -> None:
    """Beside finished, waiting and due jobs, and what they belong to."""
    insert(connection, ROWS // 2, status="SUCCESSFUL")
    insert(connection, ROWS // 4, status="WAITING", series=1)
    insert(connection, ROWS // 4, name="other", series=2)
    for is_analyzed in (False, True):
        with watched() as calls:
            use_every_verb()
        assert len({name for name, _params in calls}) > 20
        assert_all_seek(calls, FEW, is_analyzed=is_analyzed)
        analyze()


def use_every_verb() -> None:
    key = f"key-{time.monotonic_ns()}"
    for mode in OnDuplicate:
        if mode is not OnDuplicate.NO_REUSE:
            world.enqueue("verbs", idempotency_key=key, on_duplicate=mode)
    parent = world.running("verbs parent")
    child = store.bear(
        connection, world.new_job("verbs child"), parent=parent[0], root=parent[0], epoch=parent[1]
    )
    assert child
    store.park(connection, parent, awaited=[child])
    (taken,) = world.claim("verbs child")
    right = (taken.id, taken.epoch)
    for names in (("one",), ("two", "three")):
        store.record_for_many(connection, [checkpoint(right, name) for name in names])
    store.renew(connection, [right], world.LEASE)
    store.renew_held(connection, right, world.LEASE, world.LEASE)
    assert store.locked_by_others(connection, [child, right[0]]) == set()
    world.complete(right)
    world.complete(world.running("verbs lone"))
    failed = world.running("verbs dead")
    store.record_failure(connection, world.failure(failed, retryable=False), world.KEEP)
    letter = DeadLetter.objects.get(job=failed[0])
    replayed = store.replay(connection, letter.pk)
    store.run_now(connection, [world.enqueue("verbs late", delay=world.WEEK)])
    by = world.owner()
    stopped = [world.running("verbs stopped", by=by) for _ in range(2)]
    world.cancel(stopped[0][0])
    store.release(connection, [], keep=world.KEEP, claimer=by.claimer)
    lapsed = world.running("verbs lapsed")
    world.lapse(lapsed[0])
    store.rescue(connection, world.KEEP)
    world.cancel(parent[0], *(row for row in [replayed.id] if row))
    store.standing(connection, [parent[0], failed[0]])
    store.delete_trees(connection, [failed[0]])


def checkpoint(right: store.Right, name: str) -> store.Checkpoint:
    return store.Checkpoint(right, StepKind.STEP, name, 1, StepStatus.SUCCEEDED, value="1")


def test_a_checkpoint_seeks_its_job_in_a_small_table(db: None) -> None:
    """A connection keeps the plan that it has made by then, while the table grows."""
    rights = [world.running() for _ in range(3)]
    analyze()
    insert(connection, 20, status="RUNNING")
    with watched() as calls:
        for made in (rights, rights[:1]):
            store.record_for_many(connection, [checkpoint(right, "a") for right in made])
    assert_all_seek(calls, 3, is_analyzed=False)


def test_an_open_snapshot_does_not_make_every_claim_longer(db: None) -> None:
    """Vacuum can't remove the index entries of the jobs that passed; claims begin behind them."""
    claims = claimer()
    snapshot = psycopg.connect(**connection.get_connection_params())
    with snapshot:
        snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT count(*) FROM durable_job")
        for _ in range(20):
            enqueue(500)
            claimed = look_and_claim(claims, 500)
            world.complete(*[(claim.id, claim.epoch) for claim in claimed])
        enqueue(3 * SLOTS)
        claims.look(connection)
        with watched() as calls:
            # The second begins where the first has stopped.
            assert (
                len(claims.claim(connection, SLOTS) + claims.claim(connection, SLOTS)) == 2 * SLOTS
            )
        _name, params = calls[-1]
        full = {**params, "bounds": "{" + world.LONG_AGO.isoformat() + "}"}
        assert visited(("claim", full)) > 10_000
        assert visited(("claim", params)) <= FEW


def visited(call: Call) -> int:
    """Return how many entries of the claim index a statement looks up in the table."""
    return sum(
        node["Heap Fetches"] * node["Actual Loops"]
        for node in nodes(explain(call, generic=True))
        if node.get("Index Name") == "durable_job_due_idx"
    )


def test_a_claim_beside_many_rows_takes_about_as_long_as_without(db: None) -> None:
    """The exact ratios, beside a million rows, are the benchmark's."""

    def measure() -> float:
        claims = claimer()
        times = []
        for _ in range(15):
            enqueue()
            claims.look(connection)
            started = time.perf_counter()
            claimed = claims.claim(connection, SLOTS)
            times.append(time.perf_counter() - started)
            assert len(claimed) == SLOTS
            world.complete(*[(claim.id, claim.epoch) for claim in claimed])
        return median(times)

    alone = measure()
    for series, case in enumerate(("not-due", "other-queue", "unknown-name", "keys-not-due")):
        insert(connection, ROWS, **CROWDS[case].columns, series=series)
    analyze()
    assert measure() < 5 * alone


@pytest.mark.stress
@pytest.mark.parametrize("flags", [[], ["--pooled"]])
def test_a_claim_beside_a_million_rows_is_within_its_bound(flags: list[str]) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "claims.py"
    run_command([executable, script, *flags], check=True)


def test_many_lanes_cost_a_claim_nothing_while_they_have_nothing(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = [f"other-{number}" for number in range(claiming.MANY_LANES)]
    for number, name in enumerate(types):
        insert(connection, 1, name=name, due="1 hour", series=number)
    scope = store.Scope(frozenset({NAME, *types}))
    claims = store.Claims(scope, world.owner())
    # Every look counts as slow, and is followed by a rest that this test ends.
    monkeypatch.setattr(claiming, "SLOW_LOOK", 0.0)
    monkeypatch.setattr(claiming, "PAUSE_FACTOR", 10**6)
    enqueue(2)
    assert len(look_and_claim(claims, 1)) == 1
    with watched() as calls:
        assert len(claims.claim(connection, 1)) == 1
    ((_name, params),) = [call for call in calls if call[0] == "claim"]
    assert params["lanes"].count(",") == 0

    # What gave something of late is looked at; a lane that sleeps has to wait for the full look.
    enqueue(1)
    world.enqueue(types[0], queue_name=QUEUE)
    assert [claim.name for claim in claims.claim(connection, 2)] == [NAME]
    assert claims.incomplete
    assert claims.full_from > time.monotonic()
    monkeypatch.setattr(claims, "_rest_until", 0.0)
    assert [claim.name for claim in claims.claim(connection, 2)] == [types[0]]


def test_a_lane_wakes_when_its_first_job_falls_due(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = [f"other-{number}" for number in range(claiming.MANY_LANES)]
    for number, name in enumerate(types):
        insert(connection, 1, name=name, due="1 hour" if number else "4 seconds", series=number)
    claims = store.Claims(store.Scope(frozenset(types)), world.owner())
    monkeypatch.setattr(claiming, "SLOW_LOOK", 0.0)
    monkeypatch.setattr(claiming, "PAUSE_FACTOR", 10**6)
    assert look_and_claim(claims, 1) == []
    end = time.monotonic() + 20
    while not (claimed := claims.claim(connection, 1)):
        assert time.monotonic() < end
    assert claimed[0].name == types[0]
