"""Settings of the test project, from the environment, with defaults that need no service."""

from pathlib import Path

import environ
from django.core import mail

from testproject import embedded

BASE_DIR = Path(__file__).resolve().parent.parent
LOCAL_DIR = BASE_DIR / ".local"

env = environ.Env()

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env("SECRET_KEY", default="for-development-only-never-for-a-site-on-the-internet")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

DATABASES = {
    "default": {
        # Seconds for which a thread keeps its connection from one request or job to the next.
        "CONN_MAX_AGE": env.int("CONN_MAX_AGE", default=0),
        "CONN_HEALTH_CHECKS": True,
        **env.db_url_config(embedded.database_url()),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The apps of the project itself: the demonstration shop.
LOCAL_APPS = ["testproject.shop"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_durable",
    *LOCAL_APPS,
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

LANGUAGE_CODE = "en"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"

# Mail ends in files of the checkout: nothing that runs here can reach a real mailbox.
_MAIL_BACKEND = "testproject.shop.mailbox.EmailBackend"
_MAIL_DIR = LOCAL_DIR / "mail"
if hasattr(mail, "mailers"):  # Django 6.1 and newer
    MAILERS = {"default": {"BACKEND": _MAIL_BACKEND, "OPTIONS": {"file_path": _MAIL_DIR}}}
else:
    EMAIL_BACKEND = _MAIL_BACKEND
    EMAIL_FILE_PATH = _MAIL_DIR
