"""The classes on an admin site of the project's own."""

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.test import override_settings
from django.urls import path

from django_durable.admin import AttemptAdmin, DeadLetterAdmin, JobAdmin, QueueAdmin, WorkerAdmin
from django_durable.models import Attempt, DeadLetter, Job, Queue, Worker
from tests.admin.world import dead, delayed, family
from tests.by_hand import beat

pytestmark = pytest.mark.django_db

everything = AdminSite(name="operations")
everything.register(Job, JobAdmin)
everything.register(DeadLetter, DeadLetterAdmin)
everything.register(Attempt, AttemptAdmin)
everything.register(Worker, WorkerAdmin)
everything.register(Queue, QueueAdmin)

jobs_only = AdminSite(name="jobs-only")
jobs_only.register(Job, JobAdmin)

urlpatterns = [path("ops/", everything.urls), path("jobs/", jobs_only.urls)]


@pytest.fixture
def client(client):
    client.force_login(User.objects.create_superuser("root"))
    with override_settings(ROOT_URLCONF=__name__):
        yield client


def test_every_page_works_on_another_site_and_stays_there(client):
    job, worker = dead(), beat()
    Queue.objects.create(name="shown")
    letter, attempt = job.dead_letter, job.attempts.get()
    pages = [
        "job/",
        "deadletter/",
        "attempt/",
        "worker/",
        "queue/",
        "queue/shown/change/",
        "queue/shown/pause/",
        f"job/{job.pk}/change/",
        f"job/{job.pk}/fork/",
        f"job/{job.pk}/enqueue/",
        f"job/{job.pk}/replay/",
        f"job/{job.pk}/cancel/",
        f"job/{job.pk}/delete/",
        f"job/{job.pk}/history/",
        f"job/{job.pk}/payload/args/",
        f"deadletter/{letter.pk}/change/",
        f"deadletter/{letter.pk}/replay/",
        f"attempt/{attempt.pk}/change/",
        f"worker/{worker.pk}/change/",
        f"worker/{worker.pk}/drain/",
    ]
    for page in pages:
        answer = client.get(f"/ops/durable/{page}")
        assert answer.status_code == 200
        assert "/jobs/durable/" not in answer.content.decode()
    done = client.post(f"/ops/durable/job/{job.pk}/replay/", {"confirm": "yes"})
    assert done.url == f"/ops/durable/job/{job.pk}/change/"


def test_a_site_with_jobs_alone_has_no_dead_links(client):
    made = dead()
    made.dead_letter.replay()
    parent, _child = family()
    beat(name="hand")
    for job in (made, delayed(), parent):
        answer = client.get(f"/jobs/durable/job/{job.pk}/change/")
        assert answer.status_code == 200
        page = answer.content.decode()
        for other in ("deadletter", "attempt", "worker"):
            assert f"/durable/{other}/" not in page
    assert client.get("/jobs/durable/job/").status_code == 200
