"""Words of Open MPI, PMIx, ssh and Horovod: starting ranks, and steps that ranks do together."""

from __future__ import annotations

ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "mpi-slots",
        "not enough slots available in the system",
        "mpirun was asked for more ranks than the hosts have slots.",
        "fewer ranks with --np, or more slots: in hosts.yaml; toolkit status shows what is free",
    ),
    (
        "mpi-orted",
        "orted: command not found | orted: not found | prted: command not found | prted: not found",
        "A host has no Open MPI on the PATH of its ssh sessions.",
        "toolkit run, whose ssh carries the image's variables; toolkit exec -- which mpirun shows who "
        "lacks it",
    ),
    (
        "mpi-daemon-start",
        "unable to reliably start one or more daemons",
        "mpirun's daemon did not start on a host: ssh failed, its files are missing, or it cannot "
        "connect back.",
        "toolkit up proves that main logs in to every worker; toolkit check tries the ports",
    ),
    (
        "mpi-daemon-lost",
        "lost communication with a remote daemon",
        "mpirun lost a host in the middle of the job.",
        "toolkit status says which host is away; dmesg there",
    ),
    (
        "mpi-daemon-tcp",
        "unable to complete a TCP connection",
        "A daemon of Open MPI cannot connect back to main: a firewall, or the wrong network.",
        "toolkit check; remove OMPI_MCA_oob_tcp_if_include from env: in hosts.yaml, the toolkit sets it",
    ),
    (
        "mpi-wrong-peer",
        "received unexpected process identifier",
        "A rank connected to the wrong one: several hosts have the same address, of docker0 say, or NAT "
        "is between.",
        "toolkit network explain; remove OMPI_MCA_btl_tcp_if_include from env: in hosts.yaml, the "
        "toolkit sets it",
    ),
    (
        "mpi-tcp-connect",
        "failed to TCP connect to a peer MPI process | btl_tcp_endpoint … connect() to … failed",
        "Two ranks cannot connect over TCP: a firewall, or an interface that leads nowhere.",
        "toolkit check tries every pair of hosts; toolkit network explain shows the network that is used",
    ),
    (
        "mpi-tcp-lost",
        "btl_tcp … readv error | btl_tcp … readv failed | btl_tcp … Connection reset by peer | "
        "failed to handshake with a connecting peer",
        "A TCP connection between two ranks broke, most often because one of them ended.",
        "toolkit logs; the cause stands in the log of the rank that ended first",
    ),
    (
        "mpi-unreachable",
        "pair of MPI processes are unable to reach each other | "
        "MPI_INIT has failed because at least one MPI process is unreachable",
        "Open MPI sees no common network between two ranks.",
        "toolkit network explain; remove OMPI_MCA_btl from env: in hosts.yaml",
    ),
    (
        "mpi-interface",
        "invalid value was given for btl_tcp_if | invalid value was given for oob_tcp_if | "
        "None of the TCP networks specified to be included",
        "Open MPI was told of an interface or a network that a host has not.",
        "remove the *_if_include variables from env: in hosts.yaml, the toolkit sets them by network",
    ),
    (
        "mpi-cma",
        "Read -1, expected … errno = 1 | Linux kernel CMA support was requested | "
        "process_vm_readv( … not permitted",
        "Ranks of one host may not copy from each other's memory, since the container lacks that right.",
        "env: {OMPI_MCA_btl_vader_single_copy_mechanism: none} in hosts.yaml",
    ),
    (
        "mpi-root",
        "mpirun has detected an attempt to run as root | prterun has detected an attempt to run as root",
        "mpirun refuses to run as root.",
        'user: in hosts.yaml, an ssh user other than root; else env: {OMPI_ALLOW_RUN_AS_ROOT: "1", '
        'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1"}',
    ),
    (
        "mpi-program",
        "unable to find the specified executable file | unable to launch the specified application",
        "The program is not in the image, not executable, or not in the job's folder.",
        "toolkit exec -- which PROGRAM; chmod +x; run Python files by toolkit run FILE.py",
    ),
    (
        "mpi-abort",
        "MPI_ABORT was invoked on rank",
        "One rank gave up and took all others with it.",
        "toolkit logs --rank N; what that rank printed before",
    ),
    (
        "mpi-rank-signal",
        "noticed that process rank … exited on signal",
        "A rank was ended by a signal: 9 is most often want of memory, 11 a wrong memory access.",
        "toolkit status; dmesg on that host shows an end for want of memory",
    ),
    (
        "mpi-rank-failed",
        "detected that one or more processes exited with non-zero status | "
        "Primary job  terminated normally, but",
        "A rank ended with an error, and the launcher ended the rest.",
        "toolkit logs; the cause stands above, in what that rank printed",
    ),
    (
        "mpi-pmix",
        "PMIX ERROR: … in file gds_ | PMIX ERROR: PMIX_ERR_FILE_OPEN_FAILURE | "
        "PMIX ERROR: OUT-OF-RESOURCE | PMIX ERROR: NO-PERMISSIONS | pmix_init failed",
        "PMIx cannot keep its shared files in the temporary folder.",
        "env: {PMIX_MCA_gds: hash} in hosts.yaml; df /tmp by toolkit exec",
    ),
    (
        "mpi-init",
        "looks like MPI_INIT failed for some reason | looks like orte_init failed",
        "MPI could not start in a rank; the lines below it name the part that failed.",
        "toolkit smoke tries the same without your script; no second MPI from mounts: or conda",
    ),
    (
        "ssh-host-key",
        "Host key verification failed",
        "A host's key is not the one on record.",
        "between containers toolkit up, else toolkit trust",
    ),
    (
        "ssh-denied",
        "Permission denied (publickey",
        "sshd did not take the key of whoever logged in.",
        "toolkit up proves that main logs in to every worker and says which one refuses",
    ),
    (
        "hvd-stall",
        "One or more tensors were submitted to be reduced",
        "Some ranks wait in a collective that others have not come to: these are slow, dead, or on "
        "another branch.",
        "toolkit logs --rank N; the lines below name the missing ranks; same number of steps on every rank",
    ),
    (
        "hvd-shapes",
        "Mismatched … tensor shapes | Mismatched data types: One rank | Mismatched … operations: One rank",
        "Ranks gave Horovod tensors of different shape or type under one name.",
        "same model and same last batch on all ranks (drop_last=True)",
    ),
    (
        "hvd-shutdown",
        "Horovod has been shut down",
        "This rank was left alone: another one raised an error, or ended before the others were done.",
        "the cause stands in the log of the rank that ended first; same number of steps on every rank",
    ),
    (
        "hvd-not-initialized",
        "Horovod has not been initialized",
        "A function of Horovod was called before hvd.init().",
        "hvd.init() at the beginning of the script",
    ),
    (
        "hvd-not-built",
        "Extension horovod. … has not been built",
        "Horovod in this image was built without this framework.",
        "toolkit image build; horovodrun --check-build by toolkit exec shows what there is",
    ),
    (
        "hvd-task",
        "Launching horovod task function was not successful",
        "horovodrun could not start its helper on every host, or could not reach it.",
        "toolkit up proves the logins, toolkit check the ports; launcher: mpirun in hosts.yaml does "
        "without helpers",
    ),
    (
        "horovod-bfloat16",
        "Tensor type torch.BFloat16Tensor is not supported | "
        "Tensor type torch.cuda.BFloat16Tensor is not supported",
        "Horovod 0.28.1 has no bfloat16 in its binding for PyTorch.",
        "passes in bf16 with weights in fp32, by torch.autocast; or DistributedDataParallel: toolkit run "
        "--launcher torchrun",
    ),
)
