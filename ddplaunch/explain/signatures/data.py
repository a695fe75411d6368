"""Data that is missing or damaged, that several ranks write at once, or that cannot be downloaded."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_WHY = "Compute nodes often have no way to the internet, and a hub limits how often all ranks together may ask."
_FIXES = (
    "Fetch once where the network works (`huggingface-cli download NAME`), then launch offline: "
    "`--env HF_HUB_OFFLINE=1 --env HF_DATASETS_OFFLINE=1`.",
    "Download on rank 0 only, before a barrier; a proxy or mirror goes through `--env HTTPS_PROXY=…` or `--env "
    "HF_ENDPOINT=…`.",
    "For 401 and 403: log in (`huggingface-cli login`) and accept the model's terms; for 404 correct the name.",
)
_RETRY = r"Retrying|retrying|will retry|retry \d|entering retry loop|WARNING"
_NO_HUB = r"Pool\(host='(?:[\w-]+'|127\.|10\.|192\.168\.)"  # but a service of the run's own
_MISSING_WHY = (
    "The path was looked up from the rank's working directory on its own node; a disk that is not shared "
    "hides it there, and a rank that is to write it first may not have done so yet."
)
_RACE_WHY = (
    "All ranks run the same preparation code; without a barrier they create, unpack and read the same files at once."
)
_RACE_FIXES = (
    "Prepare on one rank, let the others wait: `if rank == 0: prepare()`, then `dist.barrier()`, then read.",
    "Or prepare once before the launch, so that the ranks only read.",
    "Remove the half-written files first.",
)
# Names by which a path is a checkpoint's, a script's or a temporary file's rather than a data set's.
_NOT_DATA = (
    r"\.(?:py|sh)'|\.(?:incomplete|lock|tmp|part|extracting)\b|/dev/shm|/torch_|pymp-|/tmp/tmp|/proc/|libnccl|"
    r"(?i:checkpoint|ckpt|\.pth\b|resume|pytorch_model|adapter_model|model_states|optimizer\.pt|\.safetensors|/last"
    r"\.pt|/best\.pt)"
)
_NOT_WHOLE = (
    r"RuntimeError: (?P<problem>File not found or corrupted)",
    r"EOFError: (?P<problem>Compressed file ended before the end-of-stream marker)",
    r"ReadError: (?P<problem>unexpected end of data|not a gzip file|file could not be opened successfully|empty file"
    r"|invalid header|bad checksum)",
    r"Bad(?:Gz|Z)ipFile: (?P<problem>.+)",
)
_NOT_WHOLE_EXAMPLES = (
    "RuntimeError: File not found or corrupted.",
    "EOFError: Compressed file ended before the end-of-stream marker was reached",
    "tarfile.ReadError: unexpected end of data",
    "zipfile.BadZipFile: File is not a zip file",
    "gzip.BadGzipFile: CRC check failed 0x1 != 0x2",
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="download-failed",
        tier=Tier.CAUSE,
        patterns=(r"RuntimeError: Error downloading (?P<url>\S+):$",),
        what="{url} could not be downloaded",
        why="none of the servers answered: compute nodes often have no way to the internet",
        fixes=(
            "fetch the data once where the network works: `download=True` in a Python there; then copy their folder",
            "a proxy goes through `--env HTTPS_PROXY=…`",
        ),
        examples=("RuntimeError: Error downloading train-images-idx3-ubyte.gz:",),
        near_misses=("RuntimeError: Error downloading",),
        source="https://github.com/pytorch/vision/blob/main/torchvision/datasets/mnist.py",
    ),
    Signature(
        code="download-failed",
        tier=Tier.CAUSE,
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
            "exceeded with url: /gpt2/resolve/main/config.json (Caused by NewConnectionError())",
            "ConnectionError: Couldn't reach https://raw.githubusercontent.com/x.py (error 403)",
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
            "https://huggingface.co/api/x",
        ),
        near_misses=(
            "requests.exceptions.ConnectionError: HTTPConnectionPool(host='gn14', port=8000): Max retries exceeded",
            "WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError("
            "\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\")': /gpt2",
            "wandb: Network error (ConnectionError), entering retry loop.",
        ),
        unless=(_RETRY, _NO_HUB),
        source="https://huggingface.co/docs/huggingface_hub/package_reference/utilities#errors",
    ),
    Signature(
        code="download-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"(?P<line>(?:HfHubHTTP|RepositoryNotFound|GatedRepo|LocalEntryNotFound|EntryNotFound|RevisionNotFoun"
            r"d)Error): ",
            r"(?P<line>OfflineModeIsEnabled): ",
            r"You are trying to access a gated repo",
            r"\b[\w./-]{1,120} is not a local folder and is not a valid model identifier",
            r"(?P<line>Can't load (?:the )?(?:\w+ )?\w+ (?:for|of) '[^']+')\. If you were trying to load it from "
            r"'https?:",
        ),
        what="a model, data set or service of a hub could not be fetched: {line}",
        why=_WHY,
        fixes=_FIXES,
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
        ),
        near_misses=("except LocalEntryNotFoundError as e:",),
        unless=(_RETRY, r"^\s*(?:except|raise|from|import) "),
        source="https://huggingface.co/docs/huggingface_hub/package_reference/utilities#errors",
    ),
    Signature(
        code="download-failed",
        tier=Tier.CAUSE,
        patterns=(
            r"wandb\.errors\.(?:\w+\.)?(?:CommError|AuthenticationError): (?P<line>.{1,160})",
            r"wandb: ERROR (?P<line>Run initialization has timed out.{0,60})",
            r"wandb\.errors\S*(?P<line>CommError|AuthenticationError)",
        ),
        what="wandb did not reach its server: {line}",
        why="Compute nodes often have no way to the internet; `wandb.init` waits for the server and then raises.",
        fixes=(
            "keep the run on disk: `--env WANDB_MODE=offline`, and `wandb sync` from a node with internet afterwards",
            "a proxy goes through `--env HTTPS_PROXY=…`; for 401 and 403: `wandb login` as the ranks' user",
            "call `wandb.init` on rank 0 alone, so that one slow answer does not end the others",
        ),
        examples=(
            "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
            "wandb.errors.errors.CommError: Error communicating with wandb process",
            "wandb: ERROR Run initialization has timed out after 60.0 sec.",
            "the service ended (wandb.errors.AuthenticationError)",
        ),
        near_misses=("wandb: Network connection restored.", "wandb: Network error (ReadTimeout), entering retry loop."),
        unless=(_RETRY, r"^\s*(?:except|raise|from|import) "),
        source="https://docs.wandb.ai/support/initstarterror_error_communicating_wandb_process/",
    ),
    Signature(
        code="download-failed",
        tier=Tier.GENERAL,
        patterns=(
            r"(?:URLError|urllib\S*Error): (?P<line><urlopen error [^>]*>)",
            r"HTTPError: (?P<line>HTTP Error \d+: .*)",
            r"requests\.exceptions\.(?P<line>(?:Connection|ReadTimeout|ConnectTimeout|SSL|Proxy|HTTP|ChunkedEncoding|Timeout)\w*)",
            r"httpx\.(?P<line>Connect\w+|Read\w+|HTTPStatusError|ProxyError|RemoteProtocolError): ",
            r"aiohttp\.client_exceptions\.(?P<line>Client\w+): ",
            r"urllib3\.exceptions\.(?P<line>(?:Proxy|MaxRetry|NewConnection|ConnectTimeout|ReadTimeout|SSL|NameResolut"
            r"ion)\w*): ",
            r"http\.client\.(?P<line>RemoteDisconnected|BadStatusLine)\b",
            r"botocore\.exceptions\.(?P<line>\w+(?:Error|Timeout)): ",
            r"IncompleteRead\(\d+ bytes read|^PermissionError: (?:Forbidden|Access Denied)\b",
        ),
        what="a download failed: {line}",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "urllib.error.HTTPError: HTTP Error 403: Forbidden",
            "requests.exceptions.ReadTimeout: (ReadTimeoutError(), '(Request ID: 4)')",
            "httpx.ConnectError: [Errno 101] Network is unreachable",
            "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host x:443",
            "urllib3.exceptions.ProxyError: ('Unable to connect to proxy', OSError('Tunnel failed: 403'))",
            "PermissionError: Forbidden",
            "http.client.RemoteDisconnected: Remote end closed connection without response",
            "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",
            "urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(93 bytes read, 12 more expected)')",
        ),
        near_misses=(
            "    except requests.exceptions.ConnectionError:",
            "INFO httpx: HTTP Request: GET https://x 200 OK",
        ),
        unless=(_RETRY, _NO_HUB, r"^\s*(?:except|raise|from|import) "),
        source="https://requests.readthedocs.io/en/latest/user/quickstart/#errors-and-exceptions",
    ),
    Signature(
        code="dataset-missing",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:FileNotFoundError|IOError|OSError): \[Errno 2\] (?:No such file or directory:|Failed to open .*file)"
            r" b?['\"](?P<path>[^'\"]+)['\"]",
            r"name = '(?P<path>[^']+)', errno = 2,",
            r"lmdb\.\w*Error: (?P<path>[^:]+): No such file or directory",
            r"(?:FileNotFoundError|OSError): (?P<path>/\S+): No such file or directory",
        ),
        what="`{path}` is not there",
        why=_MISSING_WHY,
        fixes=(
            "look for it on the node that failed: `ls -l {path}`; correct the path or copy the data there",
            "let ddplaunch check it on every node before the launch: `--data {path}`",
        ),
        examples=(
            "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/nvme0/data/train-00007.parquet'",
            "FileNotFoundError: /data/list.txt: No such file or directory",
            "OSError: Unable to open file (unable to open file: name = '/data/x.h5', errno = 2, error message = 'No "
            "such file')",
            "lmdb.Error: /data/lsun: No such file or directory",
        ),
        near_misses=(
            "FileNotFoundError: [Errno 2] No such file or directory: 'train.py'",
            "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/epoch_3.pth'",
            "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
        ),
        unless=(_NOT_DATA,),
        source="https://docs.python.org/3/library/exceptions.html#FileNotFoundError",
    ),
    Signature(
        code="dataset-missing",
        tier=Tier.CAUSE,
        patterns=(r"IsADirectoryError: \[Errno 21\] Is a directory: ['\"](?P<path>[^'\"]+)['\"]",),
        what="`{path}` is a folder, where a file is to be read",
        why="The path ends too early, or names a folder and a file of it is meant.",
        fixes=("look into it: `ls {path}`; give the path of the file", "let ddplaunch check it before: `--data FILE`"),
        examples=("IsADirectoryError: [Errno 21] Is a directory: '/data/config'",),
        near_misses=("IsADirectoryError: [Errno 21] Is a directory: 'checkpoints/last.ckpt'",),
        unless=(_NOT_DATA,),
        source="https://docs.python.org/3/library/exceptions.html#IsADirectoryError",
    ),
    Signature(
        code="dataset-missing",
        tier=Tier.CAUSE,
        patterns=(r"NotADirectoryError: \[Errno 20\] Not a directory: ['\"](?P<path>[^'\"]+)['\"]",),
        what="a part of `{path}` is a file, and not the folder that the path needs",
        why="Often an archive that was not unpacked, or a path that goes on behind a file.",
        fixes=("see where the folders end: `namei {path}`; unpack the archive, or correct the path",),
        examples=("NotADirectoryError: [Errno 20] Not a directory: '/data/x.tar/a'",),
        near_misses=("IsADirectoryError: [Errno 21] Is a directory: '/data/config'",),
        unless=(_NOT_DATA,),
        source="https://docs.python.org/3/library/exceptions.html#NotADirectoryError",
    ),
    Signature(
        code="dataset-missing",
        tier=Tier.CAUSE,
        patterns=(
            r"Couldn't find (?:a dataset script|any data file|any class folder|file) (?:at|in) \S+",
            r"Dataset not found(?: or corrupted)?|Could not find a dataset with the ID \S+",
            r"Unable to find '[^']+'",
            r"(?:(?:DatasetNotFound|EmptyDataset|DataFilesNotFound)Error|NoSuchKey): (?P<line>.+)",
            r"Found no valid file for the classes .*",
            r"Found 0 (?:files|images|samples) in .*",
            r"The (?:archive|file) \S+ is not present in the root directory",
            r"One or both of the \.idx and \.bin files cannot be found at the path prefix \S+",
            r"(?<!\S)\S{1,200} does not appear to have a file named [\w.-]+",
        ),
        what="the data is not there: {line}",
        why=_MISSING_WHY,
        fixes=(
            "correct the path, or fetch the data once before the launch on every node",
            "let ddplaunch check it before: `--data PATH`",
        ),
        examples=(
            "FileNotFoundError: Couldn't find a dataset script at /data/x/x.py or any data file in the same directory.",
            "FileNotFoundError: Couldn't find any class folder in /data/imagenet/train.",
            "RuntimeError: Dataset not found or corrupted. You can use download=True to download it",
            "FileNotFoundError: Unable to find '/data/train.jsonl'",
            "datasets.exceptions.DatasetNotFoundError: Dataset 'a/b' doesn't exist on the Hub or cannot be accessed.",
            "datasets.exceptions.EmptyDatasetError: The directory at /data/x doesn't contain any data files",
            "datasets.data_files.DataFilesNotFoundError: No (supported) data files found in /data/x",
            "FileNotFoundError: Found no valid file for the classes a, b. Supported extensions are: .jpg",
            "RuntimeError: Found 0 files in subfolders of: /data/val",
            "RuntimeError: The archive ILSVRC2012_devkit_t12.tar.gz is not present in the root directory or is "
            "corrupted.",
            "AssertionError: One or both of the .idx and .bin files cannot be found at the path prefix "
            "/data/text_document",
            "OSError: ./bert does not appear to have a file named config.json.",
        ),
        near_misses=("Found 0 unused parameters", "Found 1200 files in /data", "Unable to find hostfile, will proceed"),
        source="https://github.com/pytorch/vision/blob/main/torchvision/datasets/folder.py",
    ),
    Signature(
        code="dataset-missing",
        tier=Tier.GENERAL,
        patterns=(
            r"(?:FileNotFoundError|GroupNotFoundError|ArrayNotFoundError): (?P<problem>(?!\[Errno|Caught )\S.*)",
            r"(?:AssertionError|ValueError|RuntimeError|OSError|Exception): "
            r"(?P<problem>.*?[/\w.-]*(?:/|\.\w{2,7})[\w./-]*['\"`]? "
            r"(?:does not exist|doesn't exist|not found|is missing))",
        ),
        what="a file that the run reads is not there: {problem}",
        why=_MISSING_WHY,
        fixes=(
            "correct the path, or copy the file to every node that runs ranks",
            "let ddplaunch check it before: `--data PATH`",
        ),
        examples=(
            "FileNotFoundError: CityScapes: img file open error /data/leftImg8bit/x.png",
            "AssertionError: Annotation file /data/ann.json does not exist",
            "ValueError: /data/x.h5 doesn't exist",
            "OSError: /data/tokens.bin not found.",
            "RuntimeError: index /data/x.idx is missing",
        ),
        near_misses=(
            "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 2.",
            "AssertionError: the checkpoint out/epoch_3.ckpt does not exist",
            "RuntimeError: operator torchvision::nms does not exist",
            "RuntimeError: Parent directory runs/7 does not exist.",
        ),
        unless=(_NOT_DATA, r"\.so\b|[Mm]odule|attribute|/bin/|Error: Parent directory "),
        source="https://docs.python.org/3/library/exceptions.html#FileNotFoundError",
    ),
    Signature(
        code="dataset-race",
        tier=Tier.GENERAL,
        patterns=(
            r"FileExistsError: \[Errno 17\] File exists: '(?P<path>[^']+)'",
            r"OSError: \[Errno (?:39|66)\] Directory not empty: '(?P<path>[^']+)'",
            r"FileNotFoundError: .*: '(?P<path>[^']*\.(?:incomplete|lock|tmp|part|extracting)\b[^']*)'",
        ),
        what="`{path}` was created or removed by another process at the same time",
        why=_RACE_WHY,
        fixes=("for a directory alone: `os.makedirs(path, exist_ok=True)`", *_RACE_FIXES[:2]),
        examples=(
            "FileExistsError: [Errno 17] File exists: '/scratch/ana/eeg/files/eegmmidb/1.0.0/S017'",
            "OSError: [Errno 39] Directory not empty: '/home/a/.cache/datasets/x'",
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/a/.cache/hub/blobs/4f.incomplete'",
        ),
        near_misses=("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",),
        unless=(
            r"(?i:/(?:out|output|outputs|log|logs|run|runs|results?|exps?|experiments?|checkpoints?|ckpts?)(?:/|'))",
        ),
        source="https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/3886",
    ),
    Signature(
        code="dataset-race",
        tier=Tier.GENERAL,
        patterns=_NOT_WHOLE,
        what="an archive or file is not whole: {problem}",
        why="several ranks fetch or unpack the same data here, so one read what another one was still writing",
        fixes=_RACE_FIXES,
        examples=_NOT_WHOLE_EXAMPLES,
        near_misses=("Stale archive: data.zip is older than its index",),
        unless=(r"torch\.load|PytorchStreamReader",),
        log_by_several=(
            r"(?i)^(?:.{0,40}\bINFO)?\W*(?:nltk_data\W+)?(?:Download|Extract|Unpack|Unzip|Untar|Decompress)(?:ing|ed)\b.*"
            r"|^rank \d+: .*\b(?:https?://\S+ -> /|(?:download|unpack|extract)(?:ing)?\b)",
        ),
        source="https://github.com/pytorch/vision/issues/2512",
    ),
    Signature(
        code="data-corrupt",
        tier=Tier.GENERAL,
        patterns=(
            *_NOT_WHOLE,
            r"(?:OSError|ValueError): (?P<problem>(?:image file is truncated|broken data stream"
            r"|unrecognized data stream|Truncated File Read).*)",
            r"UnidentifiedImageError: (?P<problem>cannot identify image file .*)",
            r"OSError: (?P<problem>Unable to (?:synchronously )?open file \((?:truncated file|file signature not found"
            r"|bad object header|bad superblock).*)",
            r"Arrow(?:Invalid|Exception): (?P<problem>.*(?:magic bytes|Not an Arrow file|footer|Corrupt|corrupt).*)",
            r"OSError: (?P<problem>(?:(?:Could not open .*: )?Couldn't deserialize thrift|Corrupt|Invalid IPC"
            r"|Unexpected end of stream).*)",
            r"lmdb\.(?:CorruptedError|InvalidError|PageNotFoundError): (?P<problem>.+)",
            r"(?:zlib\.error: (?P<problem>Error -?\d+ while decompressing .*)|LZMAError: .+)",
            r"EOFError: (?P<problem>No data left in file)",
            r"(?:ZstdError|DataLossError|av\.error\.InvalidDataError): (?P<problem>(?!Caught ).+)",
        ),
        what="a data file is damaged or not whole: {line}",
        why="what the rank read is shorter or other than the file's format says: a download, copy or write that ended "
        "early or still went on, a full disk, or another kind of file under this name",
        fixes=(
            "`ls -l` and `sha256sum` of the file there and where it came from; fetch or copy it again",
            "files that a run makes: one rank writes a temporary file, `os.replace`, then `dist.barrier()`, and all "
            "read then",
        ),
        examples=(
            *_NOT_WHOLE_EXAMPLES,
            "OSError: image file is truncated (12 bytes not processed)",
            "PIL.UnidentifiedImageError: cannot identify image file '/d/a.jpg'",
            "OSError: Unable to synchronously open file (truncated file: eof = 800, sblock->base_addr = 0)",
            "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or",
            "OSError: Corrupt snappy compressed data.",
            "lmdb.CorruptedError: mdb_get: MDB_CORRUPTED: Located page was wrong type",
            "zlib.error: Error -3 while decompressing data: invalid stored block lengths",
            "_lzma.LZMAError: Input format not supported by decoder",
            "EOFError: No data left in file",
            "zstandard.backend_c.ZstdError: zstd decompress error: Unknown frame descriptor",
            "tensorflow.python.framework.errors_impl.DataLossError: corrupted record at 12",
        ),
        near_misses=(
            "UserWarning: Corrupt EXIF data.  Expecting to read 4 bytes but only got 0.",
            "OSError: Unable to open file (unable to open file: name = 'x.h5', errno = 2, error message = 'No such "
            "file')",
        ),
        unless=(r"torch\.load|PytorchStreamReader|errno = \d+",),
        source="https://pillow.readthedocs.io/en/stable/reference/ImageFile.html",
    ),
)
