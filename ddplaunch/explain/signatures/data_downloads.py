"""How a hub or URL that cannot be reached shows; refuses retries that succeed later."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_WHY = "Compute nodes often have no way to the internet, and a hub limits how often all ranks together may ask."
_FIXES = (
    "Fetch once where the network works (`huggingface-cli download NAME`), then launch offline: "
    "`--env HF_HUB_OFFLINE=1 --env HF_DATASETS_OFFLINE=1`.",
    "Download on rank 0 only, before a barrier; a proxy or mirror goes through `--env HTTPS_PROXY=…` or `--env "
    "HF_ENDPOINT=…`.",
    "For 401 and 403: log in (`huggingface-cli login`) and accept the model's terms; for 404 correct the name.",
)
_RETRY = r"Retrying|retrying|will retry|retry \d|entering retry loop|WARNING"

DOWNLOADS: tuple[Signature, ...] = (
    Signature(
        code="download-failed",
        role="root",
        literals=("connect to 'http", "ConnectionPool(host=", "Couldn't reach ", " for url: "),
        patterns=(
            r"couldn't connect to '(?P<url>https?://[^']+)'",
            r"HTTPS?ConnectionPool\(host='(?P<url>[^']+)', port=\d+\): (?:Max retries exceeded|Read timed out)",
            r"Couldn't reach '?(?P<url>[^\s']+)",
            r"\b[45]\d\d (?:Client|Server) Error.* for url: (?P<url>\S+)",
        ),
        what="{url} could not be reached or refused the request",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the "
            "cached files",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
            "exceeded "
            "with url: /gpt2/resolve/main/config.json (Caused by NewConnectionError())",
            "ConnectionError: Couldn't reach https://raw.githubusercontent.com/x.py (error 403)",
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
            "https://huggingface.co/api/x",
        ),
        near_misses=(
            "WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError("
            "\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\")': /gpt2",
            "wandb: Network error (ConnectionError), entering retry loop.",
        ),
        unless=(_RETRY,),
        priority=64,
        source="https://huggingface.co/docs/huggingface_hub/package_reference/utilities#errors",
    ),
    Signature(
        code="download-failed",
        role="root",
        literals=(
            "HfHubHTTPError",
            "RepositoryNotFoundError",
            "GatedRepoError",
            "LocalEntryNotFoundError",
            "EntryNotFoundError",
            "RevisionNotFoundError",
            "OfflineModeIsEnabled",
            "gated repo",
            "not a valid model identifier",
            "wandb.errors",
            "Can't load ",
        ),
        patterns=(
            r"(?P<problem>(?:HfHubHTTP|RepositoryNotFound|GatedRepo|LocalEntryNotFound|EntryNotFound|RevisionNotFoun"
            r"d)Error): ",
            r"(?P<problem>OfflineModeIsEnabled): ",
            r"(?P<problem>You are trying to access a gated repo)",
            r"(?P<problem>\b[\w./-]{1,120} is not a local folder and is not a valid model identifier)",
            r"(?P<problem>Can't load (?:the )?(?:\w+ )?\w+ (?:for|of) '[^']+')\. If you were trying to load it from "
            r"'https?:",
            r"(?P<problem>wandb\.errors\S*(?:CommError|AuthenticationError))",
        ),
        what="a model, data set or service of a hub could not be had: {problem}",
        why=_WHY,
        fixes=(*_FIXES, "for wandb on nodes without internet: `--env WANDB_MODE=offline`"),
        examples=(
            "huggingface_hub.utils._errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache",
            "huggingface_hub.utils._errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1)",
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://x: offline mode is enabled.",
            "OSError: You are trying to access a gated repo.",
            "huggingface_hub.errors.HfHubHTTPError: 503 Server Error",
            "huggingface_hub.errors.GatedRepoError: 403 Client Error.",
            "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.",
            "OSError: bert-bse is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'",
            "OSError: Can't load tokenizer for 'bert-base'. If you were trying to load it from "
            "'https://huggingface.co/models'",
            "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
        ),
        near_misses=("except LocalEntryNotFoundError as e:", "wandb: Network connection restored."),
        unless=(_RETRY, r"^\s*(?:except|raise|from|import) "),
        priority=62,
        source="https://huggingface.co/docs/huggingface_hub/package_reference/utilities#errors",
    ),
    Signature(
        code="download-failed",
        role="root",
        literals=(
            "<urlopen error",
            "HTTP Error ",
            "requests.exceptions.",
            "httpx.",
            "aiohttp.client",
            "botocore.",
            "IncompleteRead",
        ),
        patterns=(
            r"(?:URLError|urllib\S*Error): (?P<problem><urlopen error [^>]*>)",
            r"HTTPError: (?P<problem>HTTP Error \d+: .*)",
            r"requests\.exceptions\.(?P<problem>(?:Connection|ReadTimeout|ConnectTimeout|SSL|Proxy|HTTP|ChunkedEncod"
            r"ing|Timeout)\w*)",
            r"httpx\.(?P<problem>Connect\w+|Read\w+|HTTPStatusError|ProxyError|RemoteProtocolError): ",
            r"aiohttp\.client_exceptions\.(?P<problem>Client\w+): ",
            r"botocore\.exceptions\.(?P<problem>\w+(?:Error|Timeout)): ",
            r"(?P<problem>IncompleteRead\(\d+ bytes read)",
        ),
        what="a download failed: {problem}",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "urllib.error.HTTPError: HTTP Error 403: Forbidden",
            "requests.exceptions.ReadTimeout: (ReadTimeoutError(), '(Request ID: 4)')",
            "httpx.ConnectError: [Errno 101] Network is unreachable",
            "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host x:443",
            "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",
            "urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(93 bytes read, 12 more expected)')",
        ),
        near_misses=(
            "    except requests.exceptions.ConnectionError:",
            "INFO httpx: HTTP Request: GET https://x 200 OK",
        ),
        unless=(_RETRY, r"^\s*(?:except|raise|from|import) "),
        priority=58,
        source="https://requests.readthedocs.io/en/latest/user/quickstart/#errors-and-exceptions",
    ),
)
