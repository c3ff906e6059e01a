"""Words of torchrun, torch.distributed and DeepSpeed: meeting, stepping, compiling."""

from __future__ import annotations

ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "rdzv-timeout",
        "RendezvousTimeoutError",
        "Fewer hosts came to torchrun's meeting than it waits for.",
        "toolkit status says which host is away; toolkit run --launcher torchrun gives all the same "
        "number of hosts",
    ),
    (
        "rdzv-connection",
        "RendezvousConnectionError | The connection to the C10d store has failed",
        "torchrun cannot reach the store on the first host, or it has ended there.",
        "look for the host that ended first; toolkit check tries the ports of jobs",
    ),
    (
        "store-connect",
        "client socket has timed out after | client socket has failed to connect … No route to host",
        "A rank cannot reach MASTER_ADDR and MASTER_PORT: rank 0 does not listen, or a firewall is between.",
        "toolkit check; remove MASTER_ADDR and MASTER_PORT from the script, the toolkit sets them",
    ),
    (
        "store-clients",
        "seconds waiting for clients | seconds waiting for workers",
        "Not all ranks came to rank 0's store in time.",
        "toolkit logs shows the host without output; the world's size is WORLD_SIZE, not a number in "
        "the script",
    ),
    (
        "store-wait",
        "wait timeout after … keys: | DistStoreError: Socket Timeout | DistStoreError: wait timeout",
        "A rank waited too long for something that another rank should have put into the store.",
        "toolkit logs --tail 1; look for the rank whose last line is older than the others'",
    ),
    (
        "store-gone",
        "Failed to recv, got 0 bytes | sendBytes failed on SocketImpl | recvValue failed on SocketImpl",
        "Rank 0, which holds the store, has ended while other ranks still needed it.",
        "toolkit logs --rank 0; what rank 0 printed last",
    ),
    (
        "torchrun-child",
        "ChildFailedError",
        "A rank under torchrun failed; torchrun only repeats it.",
        "toolkit logs; the cause stands in the traceback of the rank that it calls first observed failure",
    ),
    (
        "torchrun-hangup",
        "SIGHUP death signal",
        "torchrun was started from a terminal that went away.",
        "toolkit run -d, as jobs outlive the terminal",
    ),
    (
        "ddp-unused",
        "Expected to have finished reduction in the prior iteration",
        "Parameters had no part in the loss, so DistributedDataParallel waits for gradients that never come.",
        "DistributedDataParallel(model, find_unused_parameters=True), or leave these layers out",
    ),
    (
        "ddp-twice",
        "Expected to mark a variable ready only once",
        "A parameter was used twice in one backward, with activation checkpointing for instance.",
        "static_graph=True for DistributedDataParallel, use_reentrant=False for checkpointing",
    ),
    (
        "ddp-models",
        "DDP expects same model across all ranks | appears not to match … of the same param in process 0",
        "Ranks built different models.",
        "same arguments on every rank; each run has its own copy of the code, so look at what data decides",
    ),
    (
        "collective-mismatch",
        "Detected mismatch between collectives on ranks",
        "Ranks called different collectives, or with different shapes.",
        "no collective under an if that depends on the rank",
    ),
    (
        "barrier",
        "failed to pass monitoredBarrier",
        "The named ranks did not come to a barrier in time.",
        "toolkit logs --rank N; what they printed last",
    ),
    (
        "ds-hostfile",
        "Unable to find hostfile, will proceed with training with local resources only",
        "DeepSpeed's own launcher knows no other hosts and trains on this one alone.",
        "toolkit run --launcher torchrun FILE.py in place of deepspeed FILE.py",
    ),
    (
        "ds-batch",
        "Check batch related parameters",
        "DeepSpeed's batch sizes do not multiply to train_batch_size with this number of ranks.",
        "leave train_batch_size out of its configuration, it follows from the others and the world's size",
    ),
    (
        "ds-world-size",
        "checkpoint being loaded used a DP world size of",
        "A ZeRO checkpoint was written by another number of ranks.",
        "the same --np, or convert it to a universal checkpoint (ds_to_universal.py)",
    ),
    (
        "ds-loss-scale",
        "Current loss scale already at minimum",
        "Every step overflowed in fp16 until the loss scale could fall no further.",
        "bf16 in DeepSpeed's configuration where the GPUs have it, or a lower learning rate",
    ),
    (
        "triton-compiler",
        "Failed to find C compiler | fatal error: Python.h: No such file",
        "Triton compiles C while a job runs, and the image has no C compiler or no headers of Python.",
        "toolkit image build, then toolkit up; in the Dockerfile of your own image, RUN apt-get install -y "
        "gcc libc6-dev python3-dev",
    ),
    (
        "inductor-compiler",
        "No working C++ compiler found",
        "torch.compile compiles C++ while a job runs, and the image has no C++ compiler.",
        "toolkit image build, then toolkit up; in the Dockerfile of your own image, RUN apt-get install -y "
        "g++ libc6-dev",
    ),
    (
        "ds-compile",
        "Error building extension | CUDA_HOME does not exist, unable to compile | "
        "CUDA_HOME environment variable is not set | Ninja is required to load C++ extensions",
        "An extension is compiled when the script starts, and the image has no compiler for CUDA.",
        "build it into an image of your own (DS_BUILD_OPS=1) and name that in image:",
    ),
)
