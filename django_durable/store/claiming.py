"""The claim: which due jobs become whose, in one short transaction.

A worker knows the lanes that hold jobs and picks from those that it may serve. While no budget
matters (no concurrency key, no limited queue, no rate), one statement claims; else see
`budgets.py`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.conf import conf
from django_durable.store.base import atomic, literal, rows
from django_durable.store.budgets import HIGHEST, LOWEST, Budgets, Candidate, Rooms
from django_durable.store.scope import Lane, Owner, Scope

LONG_AGO = datetime.min.replace(tzinfo=UTC)
# Looks begin at what was claimed last, but so often at the very beginning; and one that dead index
# entries made this slow is repeated only after PAUSE_FACTOR times as long.
FULL_LOOK_EVERY = 0.1
SLOW_LOOK = 0.004
PAUSE_FACTOR = 20
# How long claims that fill their slots leave budgets alone after nothing fitted: longer by as many
# times as that look took longer than LONG_LOOK.
BUDGETS_REST = 0.1
LONG_LOOK = 0.025
FORGET_LANES_AFTER = 60.0
# So many lanes that a seek in each is longer than a claim; and for how long one that gave something
# is looked at all the same.
MANY_LANES = 50
COLD_AFTER = 10.0
# Rows that other claimers are taking at this moment lie in front: how far one try after another
# looks past them.
SPREADS = (1, 4, 16)


class Claim(NamedTuple):
    """Hold a claimed job as its run needs it; (id, epoch) is the right to write."""

    id: UUID
    epoch: int
    name: str
    queue_name: str
    priority: int
    attempt: int
    max_attempts: int | None
    args: str
    kwargs: str
    options: dict[str, Any]
    run_after: datetime
    due_at: datetime
    claimed_at: datetime
    rejections: int
    resumed: bool
    parent_id: UUID | None
    root_id: UUID
    depth: int
    delivery_id: UUID | None
    concurrency_key: str | None
    idempotency_key: str | None
    requires: str | None
    metadata: dict[str, str]
    enqueued_at: datetime
    started_at: datetime
    lane: int
    schedule_id: int | None = None
    scheduled_for: datetime | None = None


class Claims:
    """Claim jobs for one claimer; remembers lanes, bounds and whose turn it is, and no job.

    `incomplete` tells after a claim of less than was asked for that due jobs may be left: others
    were deciding over some at that moment, or a full look has to wait. Ask again soon. `opens_at`
    tells then when a rate that holds back due jobs may have room.
    """

    def __init__(self, scope: Scope, owner: Owner) -> None:
        self.scope = scope
        self.owner = owner
        self.incomplete = False
        self.opens_at = math.inf
        self._budgets = Budgets(scope)
        self._budgets_at = 0.0
        self._lanes: dict[int, Lane] = {}
        self._served: list[Lane] = []
        self._lanes_at = 0.0
        self._forget_at = 0.0
        self._bounds: dict[int, datetime] = {}
        self._full_look_at = 0.0
        self._rest_until = 0.0
        # Of very many lanes only those are looked at between full looks that gave something of
        # late, or whose first job has fallen due: when that is, and when the others last gave.
        self._asleep: dict[int, float] = {}
        self._gave_at: dict[int, float] = {}
        # Whether there is more than one priority to be fair to, and the claimed jobs since one
        # was taken for its age.
        self._is_mixed = False
        self._since_oldest = 0

    def look(self, db: BaseDatabaseWrapper) -> None:
        """Learn of lanes, keys and limits that came up since the last look."""
        self._find_lanes(db)
        self._budgets.look(db, self._served)
        priorities = {lane.priority for lane in self._served} | set(self._budgets.levels)
        self._is_mixed = len(priorities) > 1

    @property
    def look_from(self) -> float:
        """Return from when on it is fair to look: a slow look is followed by a rest."""
        return self._lanes_at

    @property
    def full_from(self) -> float:
        """Return from when on a claim finds also what came back to an earlier place."""
        return self._rest_until

    def _find_lanes(self, db: BaseDatabaseWrapper) -> None:
        started = time.monotonic()
        is_fresh = started >= self._forget_at
        known = [] if is_fresh else sorted(self._lanes)
        found = rows(db, "find_lanes", lows=[LOWEST, *known], highs=[*known, HIGHEST])
        if is_fresh:
            self._lanes = {}
            self._gave_at = {}
            self._forget_at = started + FORGET_LANES_AFTER
        self._lanes.update((row[0], Lane(*row)) for row in found)
        self._served = [lane for lane in self._lanes.values() if self.scope.serves(lane)]
        self._lanes_at = _rest(started)

    def claim(
        self, db: BaseDatabaseWrapper, slots: int, shunned: Sequence[UUID] = ()
    ) -> list[Claim]:
        """Claim up to `slots` due jobs in the order priority, due time, id, and return them so.

        One in `DURABLE_FAIR_SHARE` is the oldest due one whatever its priority. Jobs in `shunned`
        are left alone. A crash before a commit claims nothing; one after it leaves claims that
        their lease, or their claimer's `release` of what it does not hold, gives back.
        """
        self.incomplete = False
        self.opens_at = math.inf
        left_out = list(shunned)
        share = conf.fair_share if self._is_mixed else None
        oldest = min((self._since_oldest + slots) // share, slots) if share else 0
        claimed: list[Claim] = []
        if oldest and not self._budgets.matter:
            claimed = self._take_free(db, slots, left_out, oldest=oldest)
        else:
            if oldest < slots:
                claimed = self._claim(db, slots - oldest, left_out)
            # If these were not as many as asked for, nothing is left that could be the oldest.
            if oldest and len(claimed) == slots - oldest:
                claimed += self._claim(db, oldest, left_out, fair=True)
        if share:
            self._since_oldest = (self._since_oldest + len(claimed)) % share
        return sorted(claimed, key=lambda claim: (-claim.priority, claim.due_at, claim.id))

    def _claim(
        self, db: BaseDatabaseWrapper, slots: int, shunned: list[UUID], *, fair: bool = False
    ) -> list[Claim]:
        """Claim in the order of the priorities or, to be fair, of the due times alone."""
        claimed: list[Claim] = []
        is_time = self._budgets.matter and time.monotonic() >= self._budgets_at
        if not is_time:
            claimed = self._take_free(db, slots, shunned, fair=fair)
        if self._budgets.matter and len(claimed) < slots:
            wanted = slots - len(claimed)
            started = time.monotonic()
            rooms = self._budgets.rooms(db, self._served)
            keyed = self._budgets.keyed(db, rooms, wanted, shunned, fair=fair)
            if keyed or any(self._is_limited(lane, rooms) for lane in self._fitting(rooms)):
                claimed += self._take_budgeted(db, wanted, shunned, rooms, keyed, fair=fair)
            else:
                if not self._budgets.overtaking:
                    # Claims that jobs without a budget fill need not ask again at once.
                    now = time.monotonic()
                    self._budgets_at = now + BUDGETS_REST * max(1.0, (now - started) / LONG_LOOK)
                if is_time:
                    claimed = self._take_free(db, slots, shunned, fair=fair)
            if len(claimed) < slots:
                self._note_opening(db, rooms)
                self.incomplete |= self._budgets.overtaking
        return claimed

    def _fitting(self, rooms: Rooms) -> list[Lane]:
        """Return the lanes whose queue and type seem to have room."""
        return [
            lane
            for lane in self._served
            if rooms.of_queue(lane.queue_name, resumed=lane.resumed) != 0
            and rooms.of_type(lane) != 0
        ]

    def _is_limited(self, lane: Lane, rooms: Rooms) -> bool:
        return lane.queue_name in rooms.queues or self.scope.rate_of(lane) is not None

    def _note_opening(self, db: BaseDatabaseWrapper, rooms: Rooms) -> None:
        """Note when the first rate that holds back a due job may have room."""
        limited = [lane for lane in self._served if self._is_limited(lane, rooms)]
        opening = {lane.lane: rooms.opens_in(lane) for lane in limited}
        paced = [lane for lane, opens_in in opening.items() if opens_in < math.inf]
        due = rows(db, "find_due_lanes", lanes=paced) if paced else []
        opens_in = min([self._budgets.opens_in, *(opening[lane] for (lane,) in due)])
        self.opens_at = time.monotonic() + opens_in

    def _take_free(
        self,
        db: BaseDatabaseWrapper,
        slots: int,
        shunned: list[UUID],
        *,
        fair: bool = False,
        oldest: int = 0,
    ) -> list[Claim]:
        """Pick and take in one statement, where no budget matters.

        The `oldest` due ones among them, if any, whatever their priority; the rest in order.
        """
        claimed: list[Claim] = []
        lanes = [lane for lane in self._served if self.scope.rate_of(lane) is None]
        spreads = iter(SPREADS)
        spread = next(spreads)
        while wanted := max(slots - len(claimed), 0):
            is_full = self._is_time_for_all()
            found, is_long = self._walk(
                db,
                "claim_fair" if oldest else "claim",
                lanes if is_full else self._awake(lanes),
                is_full=is_full,
                fair=fair,
                **({"oldest": oldest} if oldest else {}),
                slots=wanted,
                reach=spread * (2 * wanted + 10),
                shunned=shunned,
                **vars(self.owner),
            )
            picked, taken = self._taken(found)
            if is_long:
                self._find_bounds(db, lanes)
            claimed += taken
            oldest = max(oldest - len(taken), 0)
            if picked < wanted and not is_full and time.monotonic() >= self._rest_until:
                # What came back to an earlier place lies before the bounds.
                self._full_look_at = 0.0
                continue
            is_contended = picked > len(taken)
            spread = next(spreads, 0) if is_contended else 0
            if not spread:
                self.incomplete = len(claimed) < slots and (is_contended or not is_full)
                break
        return claimed

    def _take_budgeted(
        self,
        db: BaseDatabaseWrapper,
        slots: int,
        shunned: list[UUID],
        rooms: Rooms,
        keyed: list[Candidate],
        *,
        fair: bool,
    ) -> list[Claim]:
        """Lock the budgets of what seems to fit, count again, and take; one transaction."""
        self._full_look_at = 0.0
        is_full = self._is_time_for_all()
        lanes = self._fitting(rooms) if is_full else self._awake(self._fitting(rooms))
        rates = [self.scope.rate_of(lane) for lane in lanes]
        with atomic(db):
            peeked, is_long = self._walk(
                db,
                "peek_limited",
                lanes,
                is_full=is_full,
                fair=fair,
                rooms=[rooms.of_queue(lane.queue_name, resumed=lane.resumed) for lane in lanes],
                shares=[rooms.of_type(lane) for lane in lanes],
                types=[rate.type_name if rate else "" for rate in rates],
                resumed=[lane.resumed for lane in lanes],
                reach=2 * slots + 10,
                shunned=shunned,
            )
            plain = [self._candidate(*row) for row in peeked]
            merged = _merge(plain, keyed, fair=fair)
            picked = self._budgets.pick(db, merged, slots)
            taken = self._take_listed(db, picked) if picked else []
            if taken:
                ids = {claim.id for claim in taken}
                started = [candidate for candidate in picked if candidate.id in ids]
                self._budgets.log(db, started, taken[0].claimed_at)
        if is_long:
            self._find_bounds(db, lanes)
        is_contended = self._budgets.contended or len(taken) < len(picked)
        # What its full queue left out may have counted on the last place of its type's rate.
        hides = bool(taken) and any(rates)
        self.incomplete = len(taken) < slots and (is_contended or hides or not is_full)
        return taken

    def _candidate(self, id_: UUID, priority: int, due_at: datetime, number: int) -> Candidate:
        lane = self._lanes[number]
        return Candidate(id_, priority, due_at, lane.queue_name, number, lane.name, lane.resumed)

    def _take_listed(self, db: BaseDatabaseWrapper, picked: list[Candidate]) -> list[Claim]:
        found = rows(
            db,
            "claim_listed",
            slots=len(picked),
            ids=[candidate.id for candidate in picked],
            priorities=[candidate.priority for candidate in picked],
            dues=[candidate.due_at for candidate in picked],
            lanes=[candidate.lane for candidate in picked],
            keys=[candidate.key for candidate in picked],
            **vars(self.owner),
        )
        return self._taken(found)[1]

    def _is_time_for_all(self) -> bool:
        return time.monotonic() >= max(self._full_look_at, self._rest_until)

    def _awake(self, lanes: list[Lane]) -> list[Lane]:
        now = time.monotonic()
        return [lane for lane in lanes if self._asleep.get(lane.lane, 0.0) <= now]

    def _walk(
        self,
        db: BaseDatabaseWrapper,
        statement: str,
        lanes: list[Lane],
        *,
        is_full: bool,
        fair: bool,
        shunned: list[UUID],
        **params: Any,
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """Run a statement that walks the lanes, if `is_full` all that they hold.

        Tells, too, whether a full look was so long that bounds are to be found for the next ones,
        once it is known what it gave. Most looks begin at what was claimed last; index entries of
        what has been claimed lie before, which an old snapshot keeps from being removed.
        """
        started = time.monotonic()
        if is_full:
            self._bounds = {}
            self._asleep = {}
            self._full_look_at = started + FULL_LOOK_EVERY
        found = rows(
            db,
            statement,
            # As literals: with few slots their adaptation would be half the cost of a claim.
            lanes=literal([lane.number_text for lane in lanes]),
            priorities=literal(["0" if fair else lane.priority_text for lane in lanes]),
            queues=literal([lane.queue_text for lane in lanes]),
            bounds=literal([self._bound_text(lane) for lane in lanes]),
            shunned=literal([job.hex for job in shunned]),
            **params,
        )
        is_long = len(lanes) >= MANY_LANES or time.monotonic() - started > SLOW_LOOK
        return found, is_full and is_long

    def _bound_text(self, lane: Lane) -> str:
        bound = self._bounds.get(lane.lane)
        return "-infinity" if bound is None else bound.isoformat()

    def _find_bounds(self, db: BaseDatabaseWrapper, lanes: list[Lane]) -> None:
        """Learn where the lanes' jobs begin, and which of many lanes need no look for now.

        If dead entries made the look slow, and not the disk or the number of lanes, then this is
        slow too, and the next full look has to wait.
        """
        started = time.monotonic()
        found = rows(db, "find_bounds", lanes=[lane.lane for lane in lanes])
        self._bounds = {lane: bound for lane, bound, _due_in in found if bound is not None}
        now = time.monotonic()
        if len(lanes) >= MANY_LANES:
            self._asleep = {
                lane: now + (math.inf if due_in is None else due_in)
                for lane, _bound, due_in in found
                if self._gave_at.get(lane, -COLD_AFTER) <= now - COLD_AFTER
            }
        self._rest_until = _rest(started)

    def _taken(self, found: list[tuple[Any, ...]]) -> tuple[int, list[Claim]]:
        claims = [_as_claim(row[1:]) for row in found if row[1] is not None]
        now = time.monotonic()
        for claim in claims:
            if claim.concurrency_key is None:
                # A lane's jobs are taken in due order, so what lies before is as good as empty.
                bound = self._bounds.get(claim.lane, LONG_AGO)
                self._bounds[claim.lane] = max(bound, claim.due_at)
                self._gave_at[claim.lane] = now
        return found[0][0], claims


_OPTIONS = Claim._fields.index("options")
_METADATA = Claim._fields.index("metadata")


def _as_claim(row: tuple[Any, ...]) -> Claim:
    # Most jobs have neither, and then there is nothing to read.
    if row[_OPTIONS] == "{}" and row[_METADATA] == "{}":
        return Claim._make(
            (*row[:_OPTIONS], {}, *row[_OPTIONS + 1 : _METADATA], {}, *row[_METADATA + 1 :])
        )
    claim = Claim._make(row)
    return claim._replace(options=_read(row[_OPTIONS]), metadata=_read(row[_METADATA]))


def _read(text: str) -> Any:
    """Read a JSON column; the text itself, which no run takes, where Python can't."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # PostgreSQL keeps longer numbers and deeper nests. Its neighbours are to be claimed.
        return text


def _rest(started: float) -> float:
    """Return when to do again what began at `started`: at once unless it was slow."""
    now = time.monotonic()
    return now + PAUSE_FACTOR * (now - started) if now - started > SLOW_LOOK else now


def _merge(plain: list[Candidate], keyed: list[Candidate], *, fair: bool) -> list[Candidate]:
    """Merge by priority, then due time; those with keys keep their turns among themselves."""
    merged: list[Candidate] = []
    plain, keyed = plain[::-1], keyed[::-1]
    while plain and keyed:
        one, other = plain[-1], keyed[-1]
        is_first = one.due_at <= other.due_at
        if not fair and one.priority != other.priority:
            is_first = one.priority > other.priority
        merged.append(plain.pop() if is_first else keyed.pop())
    return merged + plain[::-1] + keyed[::-1]
