"""What a failure of EC2 means by the contract of adapters.

Must never: hand on the words of EC2 about credentials. A refused signature is explained with the
text that was signed, and a session token is in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from botocore import exceptions as botocore

from .adapter import Refusal, passing, refused, rejected

#: EC2's words that are kept, in characters.
_WORDS_MAX = 120

_CREDENTIALS = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "Blocked",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedAccess",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)
#: These mean that the same request may succeed later: EC2 is busy, or has or gives no more.
_BUSY = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "ServerInternal",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "Unavailable",
    }
)
_CAPACITY = frozenset(
    {
        "InsufficientAddressCapacity",
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
    }
)
_QUOTA = frozenset(
    {
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "PendingVerification",
        "VcpuLimitExceeded",
        "VolumeLimitExceeded",
    }
)
#: A group or profile that was made a moment ago may be unknown for a while, and so may a machine.
_LATE = frozenset({"IncorrectInstanceState", "IncorrectState", "ConcurrentTagAccess"})


def code_of(error: botocore.ClientError) -> str:
    """EC2's code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def translated(error: Exception, doing: str) -> Refusal:
    """What a failure of botocore means. `doing` completes the sentence "cannot …"."""
    if isinstance(error, botocore.ClientError):
        return _answered(error, doing)
    if isinstance(
        error,
        botocore.NoCredentialsError
        | botocore.PartialCredentialsError
        | botocore.CredentialRetrievalError
        | botocore.TokenRetrievalError
        | botocore.SSOError
        | botocore.ProfileNotFound,
    ):
        return rejected(
            f"cannot {doing}: no credentials of AWS can be had ({type(error).__name__}); "
            "see what `aws sts get-caller-identity` says on this host as the same user"
        )
    if isinstance(error, botocore.ParamValidationError | botocore.InvalidConfigError):
        return refused(f"cannot {doing}: botocore refuses the request; look at the settings")
    if isinstance(error, botocore.HTTPClientError | botocore.ConnectionError):
        return passing(
            f"cannot {doing}: EC2 did not answer ({type(error).__name__}); "
            "look at the network of this host, and at region and endpoint in the settings"
        )
    return passing(f"cannot {doing}: botocore failed with {type(error).__name__}")


def _answered(error: botocore.ClientError, doing: str) -> Refusal:
    code = code_of(error) or "no code"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    words = _words(error)
    if code in _CREDENTIALS:
        hint = "renew the credentials"
        if code in ("AccessDenied", "UnauthorizedOperation", "UnauthorizedAccess"):
            hint = "allow it in the policy of this identity; the README of tontine-elastic has one"
        elif code == "RequestExpired":
            hint = "renew the credentials, or set the clock of this host"
        return rejected(f"cannot {doing}: EC2 rejected the credentials ({code}); {hint}")
    if code in _CAPACITY:
        return passing(
            f"cannot {doing}: EC2 has no such machine now ({code}); "
            "wait, or choose another type or subnet"
        )
    if code in _QUOTA:
        return passing(
            f"cannot {doing}: the account may have no more machines ({code}); "
            "end some, or ask AWS for a higher quota"
        )
    if code in _BUSY or status >= 500 or status == 429:
        return passing(f"cannot {doing}: EC2 is busy ({code})")
    if code in _LATE:
        return passing(f"cannot {doing}: {code}: {words}")
    return refused(f"cannot {doing}: {code}: {words}")


def _words(error: botocore.ClientError) -> str:
    """EC2's own words: of one line, short, and without anything that looks like a key."""
    said = str(error.response.get("Error", {}).get("Message", "")).split()
    words = " ".join(_plain(said))
    return words if len(words) <= _WORDS_MAX else words[: _WORDS_MAX - 1] + "…"


def _plain(words: Iterable[str]) -> Iterable[str]:
    for word in words:
        bare = word.strip("'\"()[],.:;")
        # Access keys begin so; secrets and tokens are longer than any id of EC2.
        is_key = bare.startswith(("AKIA", "ASIA")) or (len(bare) >= 36 and "ami-" not in bare)
        yield "…" if is_key else word
