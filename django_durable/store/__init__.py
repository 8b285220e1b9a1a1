"""The verbs: the only code that runs raw SQL, and the only code that changes a job's status.

One function a verb, one short transaction a verb, its statements in `sql/`. A verb returns a small
frozen dataclass, a count or ids; it never logs and sends no Django signal.

    verb                from                    to
    enqueue             -                       READY
    bear                -                       READY (child; parent's claim, tree not cancelled)
    replay              -                       READY (new job; the dead one is marked)
    Claims.claim        READY, WAITING (due)    RUNNING
    renew               RUNNING                 RUNNING
    record_successes    RUNNING                 SUCCESSFUL
    record_failure      RUNNING                 READY, DEAD, CANCELLED
    release             RUNNING                 READY, CANCELLED (reject, give back)
    rescue              RUNNING                 READY, DEAD, CANCELLED (lease lapsed)
    park                RUNNING                 WAITING
    (any verb's end)    WAITING                 READY (what waited for the job that ended)
    cancel              READY, WAITING          CANCELLED; a RUNNING job gets a request
    cancel_late         READY                   CANCELLED (not started in time)
    run_now             READY                   READY (due now)
    record_checkpoints  RUNNING                 RUNNING (an earned step; its claim is checked)
    send_signal         WAITING (for it)        READY; otherwise only the signal is buffered
    fork                -                       READY (new job, perhaps with checkpoints)
    insert_ticks        -                       READY (the jobs of a schedule that fires)
    sweep               (all have ended)        - (trees whose time is over)

The one lock order: a tree's advisory lock, then budgets (tried, never waited for), then job rows
by id, youngest first, all in one statement: the jobs that may end together with those that wait
for them. What depends on other rows (a wake, a limit, a tree) locks first and reads in a later
statement, since under READ COMMITTED a statement that has waited for a lock still sees the other
rows as they were when it began; a waiter that came in between makes the verb begin again
(`ending`). Row locks are FOR NO KEY UPDATE, which foreign-key checks do not wait for. A claim, a
renewal and a rescue wait for no lock; what a worker does for many jobs at once over one connection
waits but a moment (`wait_briefly`), since whoever has locked a job may take his time.
"""

from django_durable.store.base import (
    OUTAGE,
    RowLocked,
    atomic,
    connection,
    end_idle_transactions_after,
    is_held,
    is_usable,
    now,
    pipeline,
    prepare_in_this_thread,
    preparing,
    relax_commits,
    wait_briefly,
    wait_for_locks,
)
from django_durable.store.base import open_transaction as transaction
from django_durable.store.budgets import drop_starts
from django_durable.store.checkpoints import (
    AlreadyRecorded,
    Checkpoint,
    Sent,
    Written,
    lock_run,
    mark_compensated,
    read_checkpoints,
    read_signal,
    record_checkpoints,
    record_for_many,
    send_signal,
)
from django_durable.store.claiming import Claim, Claims
from django_durable.store.enqueueing import (
    Enqueued,
    NewJob,
    Replayed,
    bear,
    bear_many,
    bear_over_key,
    enqueue,
    enqueue_many,
    find_undo,
    fork,
    replay,
    send_many,
)
from django_durable.store.operating import Cancelled, cancel, cancel_late, delete_trees, run_now
from django_durable.store.parking import Parked, hold_awaited, park
from django_durable.store.pointers import count_gone, pointed_to
from django_durable.store.recording import (
    Ended,
    Failure,
    Keep,
    Recorded,
    Released,
    Right,
    Standing,
    Success,
    locked_by_others,
    record_failure,
    record_successes,
    release,
    renew,
    renew_held,
    rescue,
    show_progress,
    standing,
)
from django_durable.store.scheduling import (
    DueSchedule,
    Look,
    Moved,
    Tick,
    break_schedule,
    insert_ticks,
    lock_due_schedules,
    look_at_schedules,
    mark_unknown_schedules,
    mend_schedules,
    move_schedules,
    own_declarations,
)
from django_durable.store.scope import Lane, Owner, Scope, TypeRate
from django_durable.store.sweeping import Position, Swept, sweep
from django_durable.store.workers import (
    WorkerCard,
    beat,
    forget_dead,
    keep_dead,
    retire,
    settle_hooks,
    take_hooks,
)

__all__ = [
    "OUTAGE",
    "AlreadyRecorded",
    "atomic",
    "end_idle_transactions_after",
    "now",
    "pipeline",
    "transaction",
    "Checkpoint",
    "Sent",
    "Written",
    "fork",
    "lock_run",
    "locked_by_others",
    "mark_compensated",
    "read_checkpoints",
    "read_signal",
    "record_checkpoints",
    "record_for_many",
    "send_many",
    "send_signal",
    "Cancelled",
    "Claim",
    "Claims",
    "Ended",
    "DueSchedule",
    "Enqueued",
    "Failure",
    "RowLocked",
    "Keep",
    "Lane",
    "NewJob",
    "Owner",
    "Parked",
    "Recorded",
    "Released",
    "Replayed",
    "Right",
    "Scope",
    "TypeRate",
    "drop_starts",
    "Standing",
    "Success",
    "Position",
    "Swept",
    "count_gone",
    "hold_awaited",
    "is_held",
    "is_usable",
    "keep_dead",
    "sweep",
    "Look",
    "Moved",
    "Tick",
    "break_schedule",
    "insert_ticks",
    "lock_due_schedules",
    "look_at_schedules",
    "mark_unknown_schedules",
    "mend_schedules",
    "move_schedules",
    "own_declarations",
    "WorkerCard",
    "beat",
    "bear",
    "bear_many",
    "bear_over_key",
    "cancel",
    "cancel_late",
    "connection",
    "delete_trees",
    "enqueue",
    "enqueue_many",
    "find_undo",
    "forget_dead",
    "park",
    "pointed_to",
    "prepare_in_this_thread",
    "preparing",
    "record_failure",
    "record_successes",
    "relax_commits",
    "release",
    "renew",
    "renew_held",
    "replay",
    "rescue",
    "retire",
    "run_now",
    "show_progress",
    "settle_hooks",
    "standing",
    "take_hooks",
    "wait_briefly",
    "wait_for_locks",
]
