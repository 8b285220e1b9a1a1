"""A small Django project to develop, demonstrate and test django_durable with."""
