"""Keys of S3 from the files that `aws configure` writes, where the environment has none.

Read anew every few minutes, so that keys which somebody renews are found. What else a profile can say (roles,
single sign-on, programs to ask) is for boto3. Nothing of what the files hold is ever part of a message.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from rolltape.errors import ConfigError, MissingDependencyError

_BELIEVED = timedelta(minutes=5)
_ASKED = (
    "role_arn", "source_profile", "credential_source", "credential_process", "web_identity_token_file",
    "sso_session", "sso_start_url", "sso_account_id", "login_session",
)  # fmt: skip
"""What a profile has whose keys somebody has to be asked for."""


def profile_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Options of a client of S3 that come from a profile: whose keys to use, and where; often none."""
    if environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    named = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    if not named and environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return {}
    found = _read(named or "default", environ)
    if found is None:
        if named:
            raise ConfigError(
                "there is no such profile",
                where=f"AWS_PROFILE={named}",
                causes=[f"it is neither in {_credentials(environ)} nor in {_config(environ)}"],
                hint="aws configure list-profiles, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        return {}
    options: dict[str, Any] = {}
    if found.get("region") and not (environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")):
        options["region"] = found["region"]
    if found.get("endpoint_url"):
        options["endpoint"] = found["endpoint_url"]
    if _keys(found) is not None:
        options["credential_provider"] = ProfileKeys(named or "default", dict(environ))
    elif any(found.get(name) for name in _ASKED):
        options["credential_provider"] = _by_boto3(named or "default")
    return options


class ProfileKeys:
    """The keys of a profile, for as long as they are believed; what obstore asks for them."""

    def __init__(self, profile: str, environ: Mapping[str, str]) -> None:
        self._profile = profile
        self._environ = {name: environ[name] for name in _PLACES if name in environ}

    def __repr__(self) -> str:
        return f"ProfileKeys({self._profile!r})"

    def __call__(self) -> dict[str, Any]:
        keys = _keys(_read(self._profile, self._environ) or {})
        if keys is None:
            raise ConfigError("the profile has no keys any more", where=f"AWS_PROFILE={self._profile}")
        return {**keys, "expires_at": datetime.now(timezone.utc) + _BELIEVED}


_PLACES = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "HOME")


def _keys(found: Mapping[str, str]) -> dict[str, Any] | None:
    key, secret = found.get("aws_access_key_id"), found.get("aws_secret_access_key")
    if not key or not secret:
        return None
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        "token": found.get("aws_session_token") or None,
    }


def _read(profile: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """What both files say of a profile, the file of keys first; None where neither has it."""
    section = profile if profile == "default" else f"profile {profile}"
    found = [_section(_config(environ), section), _section(_credentials(environ), profile)]
    there = [one for one in found if one is not None]
    return {name: value for one in there for name, value in one.items()} if there else None


def _section(path: str, name: str) -> dict[str, str] | None:
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ConfigError(  # without the error itself, which shows lines of the file
            f"the file of profiles cannot be read: {type(error).__name__}", where=path
        ) from None
    return dict(parser.items(name)) if parser.has_section(name) else None


def _credentials(environ: Mapping[str, str]) -> str:
    return os.path.expanduser(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")


def _config(environ: Mapping[str, str]) -> str:
    return os.path.expanduser(environ.get("AWS_CONFIG_FILE") or "~/.aws/config")


def _by_boto3(profile: str) -> Any:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise MissingDependencyError(
            "the keys of this profile have to be asked for (a role, single sign-on or a program), "
            "which boto3 does, and it is not installed",
            where=f"AWS_PROFILE={profile}",
            hint="pip install boto3; or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ) from None
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))
