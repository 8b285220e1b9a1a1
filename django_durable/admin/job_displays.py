"""What the list and the page of a job show in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable import inspection
from django_durable.admin import display
from django_durable.admin.payload_text import payload_text
from django_durable.models import DeadLetter, Job, Worker

# How much of a payload the page of a job shows, in characters.
MAX_SHOWN = 5000

# The pages of full texts: what they are called in an address, and the column that they show.
PAYLOAD_FIELDS: Mapping[str, str] = {
    "args": "args",
    "kwargs": "kwargs",
    "result": "return_value",
}


class JobDisplays:
    """Hold the displays of `JobAdmin`; a page of one job asks one query each at the most."""

    admin_site: AdminSite

    @admin.display(description=_("job"))
    def job_cell(self, obj: Job) -> str:
        return display.name_and_id(obj.name, obj.pk)

    @admin.display(description=_("status"))
    def status_words(self, obj: Any) -> str:
        return display.status(obj, obj.now)

    @admin.display(description=_("status"))
    def status_cell(self, obj: Any) -> str:
        words = display.status(obj, obj.now)
        if not obj.attempt:
            return words
        note = gettext("attempt %(count)s") % {"count": self.attempt_count(obj)}
        if obj.error_class:
            # The page of the job has the whole path.
            note = f"{note}: {obj.error_class.rpartition('.')[2]}"
        return format_html('{}<br><span class="durable-note">{}</span>', words, note)

    @admin.display(description=_("due or ended"))
    def due_or_ended(self, obj: Job) -> str:
        if obj.finished_at is not None:
            return format_html("{}<br>{}", gettext("ended"), display.time(obj.finished_at))
        if obj.due_at is not None:
            return format_html("{}<br>{}", gettext("due"), display.time(obj.due_at))
        return display.EMPTY

    @admin.display(description=_("attempt"))
    def attempt_count(self, obj: Job) -> str:
        if obj.max_attempts is None:
            return gettext("%(attempt)d, no limit") % {"attempt": obj.attempt}
        return gettext("%(attempt)d of %(most)d") % {
            "attempt": obj.attempt,
            "most": obj.max_attempts,
        }

    @admin.display(description=_("blocked on"))
    def blocked_on(self, obj: Job) -> str:
        return inspection.blocked_on(obj) or display.EMPTY

    @admin.display(description=_("progress"))
    def progress_text(self, obj: Job) -> str:
        done, total = obj.progress.get("done"), obj.progress.get("total")
        if done is None:
            return display.EMPTY
        count = str(done) if total is None else gettext("%(done)s of %(total)s") % obj.progress
        message = obj.progress.get("message")
        return f"{count}: {message}" if message else count

    @admin.display(description=_("arguments"))
    def arguments(self, obj: Job) -> str:
        return self._payload(obj, "args")

    @admin.display(description=_("keyword arguments"))
    def keyword_arguments(self, obj: Job) -> str:
        return self._payload(obj, "kwargs")

    @admin.display(description=_("result"))
    def result_text(self, obj: Job) -> str:
        # None is a result, and the only one of a job that has not succeeded.
        if obj.status != Job.Status.SUCCESSFUL:
            return display.EMPTY
        return self._payload(obj, "result")

    def _payload(self, obj: Job, field: str) -> str:
        text, cut = payload_text(getattr(obj, PAYLOAD_FIELDS[field]), MAX_SHOWN)
        if not cut:
            return display.block(text)
        url = display.page_url(self.admin_site, Job, "payload", obj.pk, field)
        more = gettext("Cut at %(most)d characters: show the full text") % {"most": MAX_SHOWN}
        return format_html(
            '<div>{}<p><a href="{}">{}</a></p></div>', display.block(text), url, more
        )

    @admin.display(description=_("worker"))
    def worker_link(self, obj: Job) -> str:
        if obj.worker is None:
            return display.EMPTY
        newest = Worker.objects.filter(name=obj.worker).order_by("-heartbeat_at").first()
        if obj.claimer is None or newest is None:
            return obj.worker
        return display.link(self.admin_site, Worker, newest.pk, obj.worker)

    @admin.display(description=_("parent"))
    def parent_link(self, obj: Job) -> str:
        return self._job_link(obj.parent_id)

    @admin.display(description=_("root"))
    def root_link(self, obj: Job) -> str:
        return gettext("itself") if obj.root_id == obj.pk else self._job_link(obj.root_id)

    @admin.display(description=_("replay of"))
    def replay_of_link(self, obj: Job) -> str:
        replayed = DeadLetter.all_objects.filter(replayed_as=obj.pk).values_list("job", flat=True)
        return self._job_link(replayed.first())

    @admin.display(description=_("replayed as"))
    def replayed_as_link(self, obj: Job) -> Any:
        letter: DeadLetter | None = obj.dead_letter
        if letter is None or letter.replayed_at is None:
            return display.EMPTY
        if letter.replayed_as_id is None:
            return _("a job that is gone")
        return self._job_link(letter.replayed_as_id)

    @admin.display(description=_("forked from"))
    def forked_from_link(self, obj: Job) -> str:
        return self._job_link(obj.forked_from)

    def _job_link(self, pk: object) -> str:
        return display.EMPTY if pk is None else display.link(self.admin_site, Job, pk)

    @admin.display(description=_("delivery key"))
    def delivery_key(self, obj: Job) -> str:
        return obj.delivery_key

    @admin.display(description=_("options"))
    def options_text(self, obj: Job) -> str:
        return self._json(obj.options)

    @admin.display(description=_("metadata"))
    def metadata_text(self, obj: Job) -> str:
        return self._json(obj.metadata)

    @admin.display(description=_("reason"))
    def cancel_reason_text(self, obj: Job) -> str:
        return display.block(obj.cancel_reason) if obj.cancel_reason else display.EMPTY

    def _json(self, value: Any) -> str:
        if not value:
            return display.EMPTY
        text, cut = display.shortened(json.dumps(value, indent=2, ensure_ascii=False), MAX_SHOWN)
        return display.block(f"{text}…" if cut else text)
