"""Words of NCCL, Gloo, UCX and libfabric: ranks that do not reach or do not understand each other."""

from __future__ import annotations

ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "nccl-no-interface",
        "no socket interface found",
        "NCCL found no network interface of the name that it was told.",
        "toolkit network explain; remove NCCL_SOCKET_IFNAME from env: in hosts.yaml, the toolkit sets "
        "each host's",
    ),
    (
        "nccl-shm",
        "Error while creating shared memory segment | Error: failed to extend /dev/shm/nccl | "
        "Call to posix_fallocate failed",
        "/dev/shm of the container is full, and NCCL takes some 10 MB of it per channel and peer.",
        "shm_size: 16g in hosts.yaml, then toolkit up",
    ),
    (
        "nccl-shm-gone",
        "Error while attaching to shared memory segment",
        "A segment in /dev/shm went away between two ranks of one host: one of them died, or they see "
        "two /dev/shm.",
        'look which rank ended first; else env: {NCCL_SHM_DISABLE: "1"} in hosts.yaml',
    ),
    (
        "rdma-memlock",
        "Call to ibv_reg_mr … failed | Call to ibv_create_cq failed … Cannot allocate memory | "
        "ibv_reg_mr( … failed | Please set max locked memory | trying to allocate some locked memory",
        "RDMA needs locked memory, and the ranks may not lock enough of it.",
        "ulimits: {memlock: unlimited} in hosts.yaml, then toolkit up; toolkit check shows what ranks get",
    ),
    (
        "rdma-retries",
        "Got completion from peer … status=12 | Got completion from peer … with error 12 | "
        "Transport retry count exceeded | transport retry counter exceeded",
        "Packets of RDMA did not arrive: a link is down, a cable bad, or RoCE is not lossless end to end.",
        "toolkit check; ibstat on both hosts; network: ethernet in hosts.yaml does without RDMA",
    ),
    (
        "rdma-completion",
        "NET/IB … Got completion from peer",
        "An RDMA transfer failed, most often because the other end had died.",
        "look for the rank that ended first; network: ethernet in hosts.yaml tells RDMA from the rest",
    ),
    (
        "nccl-mismatch",
        "collective mismatch error | Mismatched collective detected | Message truncated : received",
        "Ranks sent each other messages of different sizes: other tensors, another NCCL, or other NCCL "
        "variables.",
        "toolkit image ls shows whether all hosts have one image; compare NCCL_ variables and shapes of "
        "all ranks",
    ),
    (
        "nccl-version",
        "Mismatched NCCL version detected | socketFinalizeAccept: wrong type",
        "Ranks run different versions of NCCL.",
        "toolkit image ls, then toolkit image send; no NCCL from mounts: or LD_LIBRARY_PATH",
    ),
    (
        "nccl-stranger",
        "socketFinalizeAccept: wrong magic",
        "Something that is not a rank of this job, a port scanner perhaps, connected to NCCL's port.",
        "run the job again; keep scanners off the data network, see toolkit network explain",
    ),
    (
        "nccl-duplicate-gpu",
        "Duplicate GPU detected",
        "Two ranks of one host use the same GPU.",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first collective; slots: no '
        "more than GPUs",
    ),
    (
        "nccl-connect-timeout",
        "NCCL WARN … Connection timed out | NCCL WARN … No route to host | "
        "NCCL WARN … Network is unreachable | NCCL WARN … exceeded timeouts (",
        "NCCL got no answer from another rank: a firewall drops its ports, or the interface leads nowhere.",
        "toolkit check tries every pair of hosts on the ports of jobs; toolkit network explain shows the "
        "interface",
    ),
    (
        "nccl-refused",
        "NCCL WARN … Connection refused | NCCL WARN … exceeded error retry count | "
        "NCCL WARN … exceeded retries ( | WARN Call to connect … failed : Connection refused | "
        "socketStartConnect: Connect to … failed | connect to … returned Connection refused, exceeded",
        "NCCL was refused by another rank: that rank has ended, or a firewall rejects in its name.",
        "look for the rank that ended first; toolkit check tells a firewall from a dead rank",
    ),
    (
        "nccl-peer-gone",
        "socketProgress: Connection closed by remote peer | "
        "NCCL WARN … Connection closed by remote peer | NCCL WARN … Connection reset by peer | "
        "NCCL WARN … Broken pipe | ncclRemoteError: A call failed possibly due to",
        "The rank at the other end of an NCCL connection has ended.",
        "toolkit logs; the cause stands in the log of the rank that ended first",
    ),
    (
        "nccl-watchdog",
        "Watchdog caught collective operation timeout",
        "A collective did not finish in time, since at least one rank did not take part in it.",
        "toolkit logs --tail 1; look for the rank whose last line is older than the others'",
    ),
    (
        "nccl-watchdog-stuck",
        "ProcessGroupNCCL's watchdog got stuck | Heartbeat monitor timed out | stopped by heartbeat monitor",
        "PyTorch's watchdog itself hung, in a CUDA call or behind Python's lock, and ended the rank.",
        'nvidia-smi and dmesg on that host; env: {TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: "1800"} gives it longer',
    ),
    (
        "nccl-aborted",
        "NCCL communicator was aborted on rank",
        "This rank was told to end because another one failed or came too late.",
        "toolkit logs; the cause stands in the log of another rank",
    ),
    (
        "nccl-p2p",
        "peer access is not supported between these two devices",
        "Two GPUs of one host cannot read each other's memory.",
        'env: {NCCL_P2P_DISABLE: "1"} in hosts.yaml',
    ),
    (
        "nccl-ofi",
        "NET/OFI … No eligible providers were found | aws-ofi-nccl initialization failed | "
        "NET/OFI Couldn't find any optimal provider",
        "The libfabric plugin found no EFA device, and NCCL goes on over plain TCP.",
        "toolkit network explain says who lacks EFA; network: efa in hosts.yaml insists on it",
    ),
    (
        "cuda-fabric-manager",
        "CUDA failure … system not yet initialized | CUDA error: system not yet initialized | "
        "cudaErrorSystemNotReady | CUDA_ERROR_SYSTEM_NOT_READY",
        "The host's NVSwitch fabric is not set up: nvidia-fabricmanager does not run or is of another "
        "version.",
        "sudo systemctl enable --now nvidia-fabricmanager on the host; its version must be the driver's",
    ),
    (
        "nccl-system-error",
        "unhandled system error",
        "A call to the operating system failed within NCCL; a line with NCCL WARN above says which.",
        "toolkit check; env: {NCCL_DEBUG: INFO} in hosts.yaml shows the call that failed",
    ),
    (
        "nccl-cuda-error",
        "unhandled cuda error | ncclUnhandledCudaError",
        "A CUDA call failed within NCCL: memory, driver or a GPU.",
        "env: {NCCL_DEBUG: INFO} in hosts.yaml shows the call; toolkit smoke tries every GPU",
    ),
    (
        "nccl-invalid-usage",
        "ncclInvalidUsage",
        "NCCL was used in a way that it refuses: two ranks on one GPU, or an NCCL that does not fit the "
        "driver.",
        "env: {NCCL_DEBUG: WARN} in hosts.yaml shows why; toolkit smoke compares GPUs and slots",
    ),
    (
        "nccl-internal",
        "ncclInternalError",
        "NCCL contradicted itself, most often after another error or with versions that do not fit.",
        "env: {NCCL_DEBUG: INFO} in hosts.yaml; toolkit image ls shows whether all hosts have one image",
    ),
    (
        "gloo-loopback",
        "connectFullMesh failed … remote=[127. | SO_ERROR: … remote=[127. | "
        "Using the loopback address as fallback",
        "Gloo announced a loopback address, as the host's name leads to 127.0.x.x, so no other host "
        "reaches it.",
        "toolkit network explain; remove GLOO_SOCKET_IFNAME from env: in hosts.yaml, the toolkit sets "
        "each host's",
    ),
    (
        "gloo-interface",
        "gloo … Unable to find address for: | Unable to find interface for:",
        "GLOO_SOCKET_IFNAME names an interface that this host has not; it takes one name, no list and no "
        "address.",
        "remove GLOO_SOCKET_IFNAME from env: in hosts.yaml; toolkit network explain shows what is set in "
        "its place",
    ),
    (
        "gloo-mesh",
        "connectFullMesh failed",
        "Gloo's ranks could not all connect to each other.",
        "toolkit check tries every pair of hosts on the ports of jobs",
    ),
    (
        "gloo-timeout",
        "gloo … Timed out waiting",
        "A rank waited too long for another one in a Gloo collective.",
        "toolkit logs --tail 1; look for the rank whose last line is older than the others'",
    ),
    (
        "gloo-peer-gone",
        "gloo … Connection closed by peer | gloo … Connection reset by peer | gloo … Broken pipe",
        "The rank at the other end of a Gloo connection has ended.",
        "toolkit logs; the cause stands in the log of the rank that ended first",
    ),
)
