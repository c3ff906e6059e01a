"""Words of Linux about ports, names, downloads, disks, files and memory."""

from __future__ import annotations

ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "port-in-use",
        "Address already in use | EADDRINUSE | failed to listen on any local network address",
        "A port is taken, by a job that has not ended, or since the script writes a fixed number.",
        "remove MASTER_PORT from the script, the toolkit picks a free one; toolkit check names who holds "
        "a port",
    ),
    (
        "no-route",
        "] No route to host | : No route to host | - No route to host",
        "The way to another host is barred: its firewall answers for it, or there is no route.",
        "toolkit check says which pair and which port; toolkit network explain shows the addresses",
    ),
    (
        "net-unreachable",
        "] Network is unreachable | connect: Network is unreachable",
        "This host has no route to the address.",
        "toolkit network explain for other hosts; for the internet, stage by data: and do without downloads",
    ),
    (
        "dns",
        "] Temporary failure in name resolution | Errno -2] Name or service not known | "
        "Could not resolve host | Failed to resolve ' | "
        "The IPv4 network addresses of … cannot be retrieved",
        "A name is not known: hosts of the cluster are known by their names in hosts.yaml, others by the "
        "host's DNS.",
        "names as in hosts.yaml for ranks; for the internet, resolv.conf on that host",
    ),
    (
        "tls",
        "CERTIFICATE_VERIFY_FAILED | SSL certificate problem | server certificate verification failed | "
        "SSLCertVerificationError",
        "A download's server shows a certificate whose signer the image does not know, a company's proxy "
        "perhaps.",
        "env: {SSL_CERT_FILE: /certs/ca.pem, REQUESTS_CA_BUNDLE: /certs/ca.pem} and that file in mounts:",
    ),
    (
        "proxy",
        "ProxyError | Unable to connect to proxy | Tunnel connection failed | "
        "Proxy Authentication Required | Could not resolve proxy",
        "A download goes through a proxy that refuses it or is not there.",
        "HTTPS_PROXY and NO_PROXY in env: of hosts.yaml; or data: in place of a download on each host",
    ),
    (
        "hub-offline",
        "We couldn't connect to 'https://huggingface.co' | LocalEntryNotFoundError | OfflineModeIsEnabled",
        "A model or data set is not on this host, and the hub is not reached.",
        'data: in hosts.yaml brings your local copy to all hosts; env: {HF_HUB_OFFLINE: "1", HF_HOME: '
        "/data/hf}",
    ),
    (
        "hub-login",
        "Cannot access gated repo | GatedRepoError | "
        "401 Client Error: Unauthorized for url: https://huggingface.co",
        "The hub wants to know who asks.",
        "secrets: {HF_TOKEN: ~/.cache/huggingface/token} in hosts.yaml",
    ),
    (
        "wandb-login",
        "api_key not configured | wandb: ERROR … API key",
        "wandb has no key, and nobody at a terminal to ask.",
        "secrets: {WANDB_API_KEY: FILE} in hosts.yaml, or env: {WANDB_MODE: offline}",
    ),
    (
        "disk-full",
        "No space left on device | [Errno 28]",
        "A disk is full, or has no inode left.",
        "df -h and df -i by toolkit exec; toolkit gc; docker system prune on that host",
    ),
    (
        "disk-quota",
        "Disk quota exceeded",
        "Your quota on that file system is used up.",
        "quota -s on the host; write checkpoints to another folder of mounts:",
    ),
    (
        "disk-read-only",
        "Read-only file system",
        "What is to be written to is mounted read-only; file systems turn so by themselves after errors "
        "of the disk.",
        "read_only: in mounts: or data: of hosts.yaml; else findmnt and dmesg on the host",
    ),
    (
        "stale-handle",
        "Stale file handle | Stale NFS file handle",
        "A file on a share was removed or replaced on another host while this one had it open.",
        "one writer per file; toolkit down, then toolkit up, where the share itself was mounted anew",
    ),
    (
        "file-lock",
        "No locks available | unable to lock file, errno",
        "The file system gives no locks, as NFS without its lock service.",
        'env: {HDF5_USE_FILE_LOCKING: "FALSE"} for HDF5; caches on a local disk',
    ),
    (
        "io-error",
        "Input/output error | [Errno 5]",
        "A disk or a share failed while it was read or written.",
        "dmesg on that host; toolkit check tries every folder of mounts:",
    ),
    (
        "open-files",
        "Too many open files | received 0 items of ancdata",
        "A rank has more files open than it may.",
        'ulimits: {nofile: 65536} in hosts.yaml, then toolkit up; or set_sharing_strategy("file_system")',
    ),
    (
        "threads",
        "can't start new thread | pthread_create failed | Thread creation failed | "
        "fork: retry: Resource temporarily unavailable",
        "The limit on processes and threads is reached.",
        'fewer num_workers; env: {OMP_NUM_THREADS: "4"} in hosts.yaml',
    ),
    (
        "host-memory",
        "Cannot allocate memory | DefaultCPUAllocator: can't allocate memory | "
        "DefaultCPUAllocator: not enough memory | std::bad_alloc | Unable to allocate … for an array",
        "The host is out of memory.",
        "free -h on that host; fewer ranks, num_workers or a smaller batch",
    ),
)
