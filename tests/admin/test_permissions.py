"""Who may see and do what: without its permission an action is absent and refused."""

import pytest
from django.urls import reverse

from django_durable.models import Attempt, DeadLetter, Job
from tests.admin.world import act, charge, dead, delayed, logged, running, told, url
from tests.by_hand import beat

pytestmark = pytest.mark.django_db

ACTIONS = {
    "cancel_selected": ("cancel_job", delayed),
    "run_now_selected": ("retry_job", delayed),
    "replay_selected": ("replay_job", dead),
    "delete_selected": ("delete_job", dead),
}
BUTTONS = {
    "cancel": ("cancel_job", delayed),
    "run_now": ("retry_job", delayed),
    "replay": ("replay_job", dead),
    "signal": ("signal_job", delayed),
    "fork": ("fork_job", dead),
    "enqueue": ("enqueue_job", dead),
}

ALL = [permission for permission, _make in (ACTIONS | BUTTONS).values()]


def state():
    """Return everything that an operation could change."""
    return (
        list(Job.all_objects.order_by("pk").values()),
        list(DeadLetter.objects.order_by("pk").values()),
        logged(),
    )


def offered(client, model="job"):
    form = client.get(url("changelist", model=model)).context["action_form"]
    return set() if form is None else {name for name, _label in form.fields["action"].choices}


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_is_offered_to_holders_of_its_permission_only(staff, action):
    permission, make = ACTIONS[action]
    make()
    assert action in offered(staff("view_job", permission))
    others = [other for other in ALL if other != permission]
    assert action not in offered(staff("view_job", "view_payload", *others))
    assert action not in offered(staff("view_job"))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("confirmation", [{}, {"confirm": "yes"}, {"post": "yes"}, {"index": "0"}])
def test_an_action_without_its_permission_is_refused_and_changes_nothing(
    staff, action, confirmation
):
    permission, make = ACTIONS[action]
    made = make()
    before = state()
    others = [other for other in ALL if other != permission]
    for client in (staff("view_job"), staff("view_job", "view_payload", *others)):
        assert act(client, action, made, **confirmation).status_code == 403
    assert state() == before


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_the_right_to_view_too(staff, action):
    permission, make = ACTIONS[action]
    made = make()
    before = state()
    assert act(staff(permission), action, made, confirm="yes").status_code == 403
    assert state() == before


@pytest.mark.parametrize("page", BUTTONS)
def test_a_button_is_there_for_holders_of_its_permission_only(staff, page):
    permission, make = BUTTONS[page]
    made = make()
    address = url(page, made.pk)
    assert address in staff("view_job", permission).get(url("change", made.pk)).content.decode()
    others = [other for other in ALL if other != permission]
    client = staff("view_job", *others)
    assert address not in client.get(url("change", made.pk)).content.decode()


@pytest.mark.parametrize("page", BUTTONS)
def test_the_page_of_one_operation_is_refused_without_its_permission(staff, page):
    permission, make = BUTTONS[page]
    made = make()
    before = state()
    others = [other for other in ALL if other != permission]
    for client in (staff("view_job", *others), staff(permission)):
        assert client.get(url(page, made.pk)).status_code == 403
        assert client.post(url(page, made.pk), {"confirm": "yes"}).status_code == 403
    assert state() == before


def test_replay_of_dead_letters_needs_its_permission(staff):
    letter = dead().dead_letter
    before = state()
    for client in (staff("view_deadletter", "view_job"), staff("replay_job")):
        answer = act(client, "replay_selected", letter, model="deadletter", confirm="yes")
        assert answer.status_code == 403
        answer = client.post(url("replay", letter.pk, model="deadletter"), {"confirm": "yes"})
        assert answer.status_code == 403
    assert "replay_selected" not in offered(staff("view_deadletter"), model="deadletter")
    assert state() == before
    assert "replay_selected" in offered(staff("view_deadletter", "replay_job"), model="deadletter")


def test_nobody_adds_or_changes_rows_in_place(root):
    job = dead()
    letter = job.dead_letter
    attempt = Attempt.objects.get(job=job)
    for model, row in [
        ("job", job),
        ("deadletter", letter),
        ("attempt", attempt),
        ("worker", beat()),
    ]:
        assert root.get(url("add", model=model)).status_code == 403
        page = root.get(url("change", row.pk, model=model))
        assert page.status_code == 200
        assert "_save" not in page.content.decode()
        changed = root.post(url("change", row.pk, model=model), {"name": "other"})
        assert changed.status_code == 403


def test_dead_letters_attempts_and_workers_go_with_what_they_belong_to(root):
    job = dead()
    rows = {"deadletter": job.dead_letter, "attempt": job.attempts.get(), "worker": beat()}
    for model, row in rows.items():
        assert root.post(url("delete", row.pk, model=model), {"post": "yes"}).status_code == 403
        assert "delete_selected" not in offered(root, model=model)


def test_people_without_permissions_see_no_page(staff):
    job = dead()
    client = staff()
    for model in ("job", "deadletter", "attempt", "worker"):
        assert client.get(url("changelist", model=model)).status_code == 403
    assert client.get(url("change", job.pk)).status_code == 403
    assert client.get(url("payload", job.pk, "args")).status_code == 403
    assert "durable" not in client.get(reverse("admin:index")).content.decode()


def test_who_may_view_jobs_may_view_their_attempts(staff):
    attempt = dead().attempts.get()
    client = staff("view_job")
    assert client.get(url("change", attempt.pk, model="attempt")).status_code == 200


def test_a_get_never_acts(root):
    jobs = [delayed(), running(), dead()]
    before = state()
    for page in BUTTONS:
        for made in jobs:
            assert root.get(url(page, made.pk), {"confirm": "yes"}).status_code == 200
    assert state() == before


def test_an_operation_without_a_csrf_token_is_refused(root):
    made = delayed()
    root.handler.enforce_csrf_checks = True
    assert root.post(url("cancel", made.pk), {"confirm": "yes"}).status_code == 403
    made.refresh_from_db()
    assert made.status == Job.Status.READY


def test_a_page_of_a_job_that_is_gone_leads_back_to_the_list(root):
    job = charge.enqueue()
    gone = url("cancel", job.pk)
    job.cancel()
    job.delete()
    answer = root.post(gone, {"confirm": "yes"})
    assert answer.url == url("changelist")
    assert [level for level, _text in told(answer)] == ["warning"]
    for nonsense in ("cancel", "replay", "run_now", "change"):
        assert root.get(url(nonsense, "no-uuid")).status_code == 302
