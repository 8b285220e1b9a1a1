"""A worker serves no pages."""

urlpatterns: list[object] = []
