"""Foreign keys of users' models to jobs: what deletions do to their rows, and sweeps leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, models
from django.db.models import ProtectedError
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_durable import operations, store
from django_durable.models import Attempt, DeadLetter, Job
from tests.kernel import world

pytestmark = pytest.mark.django_db

MakeModel = Callable[..., Any]


@pytest.fixture
def make_model() -> Iterator[MakeModel]:
    """Make a model of the shop with a foreign key, and its table for this test."""
    made: list[str] = []

    def make(on_delete: Any, to: Any = Job, **options: Any) -> Any:
        name = f"Pointer{len(made)}"
        key = models.ForeignKey(to, on_delete, related_name="+", **options)
        meta = type("Meta", (), {"app_label": "shop"})
        model: Any = type(name, (models.Model,), {"__module__": __name__, "Meta": meta, "job": key})
        made.append(name.lower())
        with connection.schema_editor() as editor:
            editor.create_model(model)
        return model

    yield make
    for name in made:
        del apps.all_models["shop"][name]
    apps.clear_cache()


def ended(count: int = 1) -> list[Job]:
    jobs = []
    for _ in range(count):
        right = world.running()
        world.complete(right)
        jobs.append(Job.all_objects.get(pk=right[0]))
    return jobs


def let_pass() -> None:
    Job.all_objects.update(kept_until=world.LONG_AGO)


def prune(*flags: str) -> int:
    out = StringIO()
    call_command("durable", "prune", *flags, "--json", stdout=out)
    number: int = json.loads(out.getvalue())["deleted"]
    return number


@pytest.mark.parametrize("how", ["job", "queryset"])
def test_a_deletion_by_hand_does_what_on_delete_says(make_model: MakeModel, how: str) -> None:
    nulled, cascading = make_model(models.SET_NULL, null=True), make_model(models.CASCADE)
    job, other = ended(2)
    for each in (job, other):
        nulled.objects.create(job=each)
        cascading.objects.create(job=each)
    if how == "job":
        number, counts = job.delete()
    else:
        number, counts = Job.objects.filter(pk=job.pk).delete()
    assert (number, counts["durable.Job"], counts["shop.Pointer1"]) == (2, 1, 1)
    assert set(nulled.objects.values_list("job", flat=True)) == {None, other.pk}
    assert list(cascading.objects.values_list("job", flat=True)) == [other.pk]
    connection.check_constraints()


@pytest.mark.parametrize("on_delete", [models.PROTECT, models.RESTRICT, models.DO_NOTHING])
def test_a_deletion_by_hand_is_refused_where_on_delete_says_so(
    make_model: MakeModel, on_delete: Any
) -> None:
    nulled, holding = make_model(models.SET_NULL, null=True), make_model(on_delete)
    (job,) = ended()
    nulled.objects.create(job=job)
    holding.objects.create(job=job)
    with pytest.raises(ProtectedError, match=r"point|referenced"):
        job.delete()
    assert nulled.objects.get().job == job
    holding.objects.all().delete()
    job.delete()
    assert nulled.objects.get().job is None


def test_what_is_not_the_databases_to_check_is_as_on_delete_says(make_model: MakeModel) -> None:
    loose = make_model(models.DO_NOTHING, db_constraint=False)
    (job,) = ended()
    loose.objects.create(job=job)
    job.delete()
    assert loose.objects.get().job_id == job.pk


def test_a_key_to_a_dead_letter_counts_too(make_model: MakeModel) -> None:
    nulled = make_model(models.SET_NULL, to=DeadLetter, null=True)
    right = world.running()
    store.record_failure(connection, world.failure(right, retryable=False), world.KEEP)
    row = nulled.objects.create(job=DeadLetter.objects.get())
    Job.objects.get(pk=right[0]).delete()
    row.refresh_from_db()
    assert row.job_id is None


@pytest.mark.parametrize("to", [DeadLetter, Attempt])
def test_a_key_to_what_goes_with_a_job_holds_that(make_model: MakeModel, to: Any) -> None:
    cascading = make_model(models.CASCADE, to=to)
    right = world.running()
    store.record_failure(connection, world.failure(right, retryable=False), world.KEEP)
    row = cascading.objects.create(job=to.objects.get())
    ended()
    let_pass()
    assert prune("--dry-run") == 1
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert operations.prune() == 1
    assert sum("DELETE FROM durable_job" in query["sql"] for query in queries) == 1
    assert Job.all_objects.get().pk == right[0]
    row.delete()
    assert (prune("--dry-run"), prune()) == (1, 1)


def test_a_key_of_a_member_holds_its_whole_tree(make_model: MakeModel) -> None:
    cascading = make_model(models.CASCADE)
    (root,) = ended()
    (child,) = ended()
    Job.all_objects.filter(pk=child.pk).update(parent=root, root=root, depth=1)
    row = cascading.objects.create(job=child)
    let_pass()
    assert (prune("--dry-run"), prune()) == (0, 0)
    row.delete()
    assert (prune("--dry-run"), prune()) == (2, 2)


def test_what_is_not_kept_at_all_ends_well_where_a_key_holds_it(make_model: MakeModel) -> None:
    cascading = make_model(models.CASCADE)
    right = world.running()
    cascading.objects.create(job_id=right[0])
    recorded = store.record_successes(connection, [store.Success(right, "7", timedelta(0))])
    assert recorded.succeeded == {right[0]}
    connection.check_constraints()
    assert Job.all_objects.get().status == "SUCCESSFUL"


def test_a_sweep_looks_up_what_users_hold_and_does_not_find_it_out_by_halves(
    make_model: MakeModel,
) -> None:
    nulled = make_model(models.SET_NULL, null=True)
    held = ended(20)
    nulled.objects.bulk_create(nulled(job=job) for job in held)
    (free,) = ended()
    let_pass()
    assert prune("--dry-run") == 1
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert operations.prune() == 1
    assert sum("DELETE FROM durable_job" in query["sql"] for query in queries) == 1
    assert not Job.all_objects.filter(pk=free.pk).exists()
    nulled.objects.update(job=None)
    assert (prune("--dry-run"), prune()) == (20, 20)


def test_what_the_database_clears_itself_is_not_held() -> None:
    (job,) = ended()
    let_pass()
    with connection.cursor() as cursor:
        cursor.execute(
            'CREATE TABLE "of 100%" (job_id uuid REFERENCES durable_job ON DELETE SET NULL)'
        )
        cursor.execute(f"INSERT INTO \"of 100%\" VALUES ('{job.pk}')")
    assert (prune("--dry-run"), prune()) == (1, 1)


def test_a_strange_name_of_a_table_is_no_trouble() -> None:
    (job,) = ended()
    let_pass()
    with connection.cursor() as cursor:
        cursor.execute('CREATE TABLE "of 100%" ("The Job" uuid REFERENCES durable_job)')
        cursor.execute(f"INSERT INTO \"of 100%\" VALUES ('{job.pk}')")
    assert (prune("--dry-run"), prune()) == (0, 0)


def test_the_admin_says_what_a_key_does(make_model: MakeModel) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    cascading, holding = make_model(models.CASCADE), make_model(models.PROTECT)
    url = reverse("admin:durable_job_changelist")
    job, other = ended(2)
    cascading.objects.create(job=job)
    holding.objects.create(job=other)
    chosen = {"action": "delete_selected", "_selected_action": [str(job.pk)]}
    shown = client.post(url, chosen).content.decode()
    assert "Pointer0s: 1" in shown
    client.post(url, {**chosen, "confirm": "yes"})
    assert not cascading.objects.exists()
    assert not Job.all_objects.filter(pk=job.pk).exists()
    chosen["_selected_action"] = [str(other.pk)]
    answer = client.post(url, {**chosen, "confirm": "yes"})
    assert answer.status_code == 200
    assert "Cannot delete" in answer.content.decode()
    assert Job.all_objects.filter(pk=other.pk).exists()


def test_the_admin_deletes_no_rows_of_a_model_that_one_may_not_delete(
    make_model: MakeModel,
) -> None:
    cascading = make_model(models.CASCADE)
    user = User.objects.create_user("some", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "delete_job"]))
    client = Client(raise_request_exception=False)
    client.force_login(user)
    (job,) = ended()
    cascading.objects.create(job=job)
    admin.site.register(cascading)
    try:
        url = reverse("admin:durable_job_changelist")
        chosen = {"action": "delete_selected", "_selected_action": [str(job.pk)]}
        assert client.post(url, {**chosen, "confirm": "yes"}).status_code == 403
    finally:
        admin.site.unregister(cascading)
    assert cascading.objects.get().job == job
