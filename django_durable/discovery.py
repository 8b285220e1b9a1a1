"""Finding the job types of the project."""

from __future__ import annotations

from django.utils.module_loading import autodiscover_modules


def autodiscover() -> None:
    """Import the modules `jobs` and `tasks` of every installed app, which define its job types.

    May be called again, which costs nothing. An error in such a module goes up to the caller;
    an app that has no such module is passed over.
    """
    autodiscover_modules("jobs", "tasks")
