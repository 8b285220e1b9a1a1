"""Pages over tables of any size."""

from __future__ import annotations

import json
from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.utils.functional import cached_property


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Count up to `cap` rows exactly and go by the planner's estimate above it.

    `is_capped` tells that there are more, `is_estimate` that the planner knows about how many. Only
    the first `cap` rows have pages, since an OFFSET reads what it skips. Both of its queries are
    sent for a table of any size.
    """

    cap = 10_000

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, or about how many."""
        estimated = self._estimated  # asked for always, so that each page costs the same queries
        return max(self._counted, estimated) if self.is_capped else self._counted

    @cached_property
    def num_pages(self) -> int:
        """Return the number of pages that can be visited."""
        return min(super().num_pages, max(1, self.cap // self.per_page))

    @property
    def is_capped(self) -> bool:
        """Tell whether there are more rows than are counted."""
        return self._counted > self.cap

    @property
    def is_estimate(self) -> bool:
        """Tell whether `count` is a guess: one below what was counted is none."""
        return self.is_capped and self._estimated > self._counted

    @cached_property
    def _counted(self) -> int:
        if not isinstance(self.object_list, QuerySet):
            return len(self.object_list)
        return self._keys.values("pk")[: self.cap + 1].count()

    @cached_property
    def _estimated(self) -> int:
        if not isinstance(self.object_list, QuerySet):
            return 0
        plan = self._keys.values("pk").explain(format="json")
        return int(json.loads(plan)[0]["Plan"]["Plan Rows"]) if plan else 0

    @property
    def _keys(self) -> QuerySet[Any]:
        rows: Any = self.object_list
        unordered: QuerySet[Any] = rows.order_by()
        return unordered
