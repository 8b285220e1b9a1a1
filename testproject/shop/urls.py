"""URLs of the shop."""

from django.urls import path

from testproject.shop import views

app_name = "shop"

urlpatterns = [
    path("", views.show_status, name="status"),
    path("orders/", views.take_order, name="orders"),
    path("deliveries/<str:reference>/approval", views.decide, name="approval"),
]
