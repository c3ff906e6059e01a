"""Settings as tutorials, scripts and vendors' guides have them: those that come to nothing, and good ones."""

from __future__ import annotations

# The variables as a person writes them; the one at fault; its verdict; what the finding must say.
FAULTS: list[tuple[str, str, str, str]] = [
    # Names that no library reads.
    ("NCCL_TIMEOUT=1800", "NCCL_TIMEOUT", "warning", "init_process_group(timeout="),
    ("NCCL_BUFFLE_SIZE=16777216", "NCCL_BUFFLE_SIZE", "warning", "rename the variable to NCCL_BUFFSIZE"),
    ("NCCL_SOCKET_TIMEOUT=300", "NCCL_SOCKET_TIMEOUT", "warning", "NCCL_SOCKET_RETRY_CNT"),
    ("NCCL_DETERMINISTIC=1", "NCCL_DETERMINISTIC", "warning", "NCCL_ALGO=Ring"),
    ("NCCL_PORT_RANGE=30000-30100", "NCCL_PORT_RANGE", "warning", "free ports"),
    ("NCCL_DISABLE_IPV6=1", "NCCL_DISABLE_IPV6", "warning", "reads no variable NCCL_DISABLE_IPV6"),
    (
        "NCCL_SOCKET_IFNAMES=eth0",
        "NCCL_SOCKET_IFNAMES",
        "warning",
        "rename the variable to NCCL_SOCKET_IFNAME",
    ),
    ("NCCL_IB_HCAS=mlx5_0", "NCCL_IB_HCAS", "warning", "rename the variable to NCCL_IB_HCA"),
    (
        "NCCL_NSOCKET_PERTHREAD=4",
        "NCCL_NSOCKET_PERTHREAD",
        "warning",
        "rename the variable to NCCL_NSOCKS_PERTHREAD",
    ),
    (
        "NCCL_ENABLE_MONITORING=0",
        "NCCL_ENABLE_MONITORING",
        "warning",
        "rename the variable to TORCH_NCCL_ENABLE_MONITORING",
    ),
    (
        "NCCL_AVOID_RECORD_STREAMS=1",
        "NCCL_AVOID_RECORD_STREAMS",
        "warning",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
    ),
    ("TORCH_NCCL_DEBUG=INFO", "TORCH_NCCL_DEBUG", "warning", "rename the variable to NCCL_DEBUG"),
    ("TORCH_DISTRIBUTED_TIMEOUT=3600", "TORCH_DISTRIBUTED_TIMEOUT", "warning", "init_process_group"),
    ("TORCH_DISTRIBUTED_BACKEND=gloo", "TORCH_DISTRIBUTED_BACKEND", "warning", "init_process_group"),
    ("TORCH_DISTRIBUTED_DETAILED_LOGGING=1", "TORCH_DISTRIBUTED_DETAILED_LOGGING", "warning", "no variable"),
    ("GLOO_TIMEOUT_SECONDS=1200", "GLOO_TIMEOUT_SECONDS", "warning", "init_process_group"),
    ("GLOO_SOCKET_FAMILY=AF_INET", "GLOO_SOCKET_FAMILY", "warning", "reads no variable"),
    ("GLOO_USE_IPV6=0", "GLOO_USE_IPV6", "warning", "reads no variable"),
    (
        "OMPI_MCA_coll_hcoll_enable=0",
        "OMPI_MCA_coll_hcoll_enable",
        "warning",
        "Open MPI reads no variable",
    ),
    (
        "OMPI_MCA_btl_tcp_if_inlcude=eth0",
        "OMPI_MCA_btl_tcp_if_inlcude",
        "warning",
        "OMPI_MCA_btl_tcp_if_include",
    ),
    (
        "OMPI_MCA_BTL_TCP_LINKS=2",
        "OMPI_MCA_BTL_TCP_LINKS",
        "warning",
        "rename the variable to OMPI_MCA_btl_tcp_links",
    ),
    (
        "OMPI_MCA_mpi_thread_multiple=1",
        "OMPI_MCA_mpi_thread_multiple",
        "warning",
        "always built with threads",
    ),
    (
        "HOROVOD_FUSION_TRESHOLD=67108864",
        "HOROVOD_FUSION_TRESHOLD",
        "warning",
        "rename the variable to HOROVOD_FUSION_THRESHOLD",
    ),
    ("UCX_NET_DEVICE=mlx5_0:1", "UCX_NET_DEVICE", "warning", "UCX_NET_DEVICES"),
    ("UCX_TLSS=tcp", "UCX_TLSS", "warning", "rename the variable to UCX_TLS"),
    ("FI_EFA_USE_RDMA=1", "FI_EFA_USE_RDMA", "warning", "reads no variable"),
    ("OFI_NCCL_PROTOCOLL=RDMA", "OFI_NCCL_PROTOCOLL", "warning", "rename the variable to OFI_NCCL_PROTOCOL"),
    # Names of another time, or for another program.
    ("NCCL_MAX_NRINGS=8", "NCCL_MAX_NRINGS", "warning", "rename the variable to NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_NRINGS=4", "NCCL_MIN_NRINGS", "warning", "rename the variable to NCCL_MIN_NCHANNELS"),
    ("NCCL_NRINGS=4", "NCCL_NRINGS", "warning", "NCCL_MIN_NCHANNELS"),
    ("NCCL_LL_THRESHOLD=0", "NCCL_LL_THRESHOLD", "warning", "since version 2.5"),
    ("NCCL_TREE_THRESHOLD=0", "NCCL_TREE_THRESHOLD", "warning", "NCCL_ALGO=Ring"),
    ("NCCL_IB_CUDA_SUPPORT=1", "NCCL_IB_CUDA_SUPPORT", "warning", "NCCL_NET_GDR_LEVEL"),
    ("NCCL_CHECKS_DISABLE=1", "NCCL_CHECKS_DISABLE", "warning", "NCCL_CHECK_MODE"),
    (
        "NCCL_BLOCKING_WAIT=0",
        "NCCL_BLOCKING_WAIT",
        "warning",
        "rename the variable to TORCH_NCCL_BLOCKING_WAIT",
    ),
    (
        "NCCL_ASYNC_ERROR_HANDLING=1",
        "NCCL_ASYNC_ERROR_HANDLING",
        "warning",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ),
    ("NCCL_DESYNC_DEBUG=1", "NCCL_DESYNC_DEBUG", "warning", "rename the variable to TORCH_NCCL_DESYNC_DEBUG"),
    ("TORCH_NCCL_TRACE_BUFFER_SIZE=2000", "TORCH_NCCL_TRACE_BUFFER_SIZE", "warning", "TORCH_FR_BUFFER_SIZE"),
    ("HOROVOD_GPU_ALLREDUCE=NCCL", "HOROVOD_GPU_ALLREDUCE", "warning", "HOROVOD_GPU_OPERATIONS"),
    ("HOROVOD_GPU_OPERATIONS=NCCL", "HOROVOD_GPU_OPERATIONS", "warning", "only when Horovod is built"),
    ("HOROVOD_WITH_PYTORCH=1", "HOROVOD_WITH_PYTORCH", "warning", "only when Horovod is built"),
    ("HOROVOD_START_TIMEOUT=600", "HOROVOD_START_TIMEOUT", "warning", "horovodrun"),
    ("OMPI_MCA_plm_rsh_args=-p", "OMPI_MCA_plm_rsh_args", "warning", "only the launcher mpirun reads"),
    (
        "OMPI_MCA_oob_tcp_if_include=eth0",
        "OMPI_MCA_oob_tcp_if_include",
        "warning",
        "only the launcher mpirun reads",
    ),
    ("OMPI_MCA_orte_rsh_agent=ssh", "OMPI_MCA_orte_rsh_agent", "warning", "only the launcher mpirun reads"),
    ("OMPI_MCA_hwloc_base_binding_policy=core", "OMPI_MCA_hwloc_base_binding_policy", "warning", "mpirun"),
    ("OMPI_MCA_opal_leave_pinned=1", "OMPI_MCA_opal_leave_pinned", "warning", "OMPI_MCA_mpi_leave_pinned"),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=60", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "warning", "torchrun"),
    ("FI_EFA_SET_CUDA_SYNC_MEMOPS=0", "FI_EFA_SET_CUDA_SYNC_MEMOPS", "warning", "since version 1.20"),
    ("OFI_NCCL_ROUND_ROBIN_THRESHOLD=262144", "OFI_NCCL_ROUND_ROBIN_THRESHOLD", "warning", "SCHED_MAX_SMALL"),
    ("FI_EFA_MTU_SIZE=8192", "FI_EFA_MTU_SIZE", "error", "stops each process"),
    # Values that are read as something else, or not at all.
    ("NCCL_IB_TIMEOUT=23", "NCCL_IB_TIMEOUT", "warning", "1 to 22"),
    ("NCCL_IB_TIMEOUT=1000", "NCCL_IB_TIMEOUT", "warning", "1 to 22"),
    ("NCCL_IB_RETRY_CNT=13", "NCCL_IB_RETRY_CNT", "warning", "0 to 7"),
    ("NCCL_IB_DISABLE=true", "NCCL_IB_DISABLE", "warning", "as the integer 0"),
    ("NCCL_P2P_DISABLE=True", "NCCL_P2P_DISABLE", "warning", "set NCCL_P2P_DISABLE=1"),
    ("NCCL_BUFFSIZE=4M", "NCCL_BUFFSIZE", "warning", "set NCCL_BUFFSIZE=4194304"),
    ("NCCL_BUFFSIZE=8", "NCCL_BUFFSIZE", "warning", "size in bytes"),
    ("NCCL_DEBUG=ERROR", "NCCL_DEBUG", "warning", "VERSION, WARN, INFO"),
    (
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NETWORK",
        "NCCL_DEBUG_SUBSYS",
        "warning",
        "ignores 'NETWORK'",
    ),
    ("NCCL_P2P_LEVEL=nvl", "NCCL_P2P_LEVEL", "warning", "case-sensitive"),
    ("NCCL_NET_GDR_LEVEL=NODE", "NCCL_NET_GDR_LEVEL", "warning", "LOC, NVL"),
    ("NCCL_NTHREADS=100", "NCCL_NTHREADS", "warning", "multiple of 32"),
    ("NCCL_SOCKET_NTHREADS=32", "NCCL_SOCKET_NTHREADS", "warning", "0 to 16"),
    ("NCCL_CROSS_NIC=auto", "NCCL_CROSS_NIC", "warning", "as the integer 0"),
    ("NCCL_SOCKET_FAMILY=IPv4", "NCCL_SOCKET_FAMILY", "warning", "AF_INET and AF_INET6"),
    ("NCCL_ALGO=auto", "NCCL_ALGO", "error", "unknown value 'auto'"),
    ("NCCL_ALGO=Ring,CollNet", "NCCL_ALGO", "error", "unknown value 'CollNet'"),
    ("NCCL_ALGO=allreduces:Ring", "NCCL_ALGO", "error", "function"),
    ("NCCL_PROTO=LL,Simpel", "NCCL_PROTO", "error", "unknown value 'Simpel'"),
    ("NCCL_SOCKET_IFNAME=eth*", "NCCL_SOCKET_IFNAME", "error", "matches no interface"),
    ("NCCL_SOCKET_IFNAME=192.0.2.11", "NCCL_SOCKET_IFNAME", "error", "matches no interface"),
    ("NCCL_SOCKET_IFNAME=^lo,^docker0", "NCCL_SOCKET_IFNAME", "warning", "'^docker0' matches no interface"),
    ("NCCL_SOCKET_IFNAME=lo", "NCCL_SOCKET_IFNAME", "warning", "loopback"),
    ("GLOO_SOCKET_IFNAME=^lo,docker0", "GLOO_SOCKET_IFNAME", "error", "not an interface name"),
    ("GLOO_SOCKET_IFNAME==eth0", "GLOO_SOCKET_IFNAME", "error", "not an interface name"),
    ("GLOO_DEVICE_TRANSPORT=ibverbs", "GLOO_DEVICE_TRANSPORT", "warning", "TCP and LINUX"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=true", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "error", "is not an integer"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=4", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "warning", "0 to 3"),
    ("TORCH_NCCL_ENABLE_MONITORING=off", "TORCH_NCCL_ENABLE_MONITORING", "error", "true, false, yes or no"),
    ("TORCH_DISTRIBUTED_DEBUG=TRUE", "TORCH_DISTRIBUTED_DEBUG", "error", "OFF, INFO and DETAIL"),
    ("TORCH_DIST_INIT_BARRIER=yes", "TORCH_DIST_INIT_BARRIER", "error", "set TORCH_DIST_INIT_BARRIER=1"),
    ("OMP_NUM_THREADS=auto", "OMP_NUM_THREADS", "warning", "list of positive integers"),
    ("HOROVOD_HIERARCHICAL_ALLREDUCE=true", "HOROVOD_HIERARCHICAL_ALLREDUCE", "warning", "ALLREDUCE=1"),
    (
        "HOROVOD_FUSION_THRESHOLD=64",
        "HOROVOD_FUSION_THRESHOLD",
        "warning",
        "set HOROVOD_FUSION_THRESHOLD=67108864",
    ),
    ("HOROVOD_CYCLE_TIME=fast", "HOROVOD_CYCLE_TIME", "warning", "requires a number"),
    ("HOROVOD_CPU_OPERATIONS=nccl", "HOROVOD_CPU_OPERATIONS", "error", "mpi, ccl and gloo"),
    ("HOROVOD_LOG_LEVEL=verbose", "HOROVOD_LOG_LEVEL", "warning", "trace, debug, info"),
    ("OMPI_MCA_btl=self,sm,tcp", "OMPI_MCA_btl", "error", "vader replaced sm"),
    ("OMPI_MCA_btl=tcp", "OMPI_MCA_btl", "error", "set OMPI_MCA_btl=self,tcp"),
    ("OMPI_MCA_btl=self,^openib", "OMPI_MCA_btl", "error", "not the first character"),
    ("OMPI_MCA_pml=yalla", "OMPI_MCA_pml", "error", "has no component 'yalla'"),
    (
        "OMPI_MCA_btl_tcp_if_include=^docker0",
        "OMPI_MCA_btl_tcp_if_include",
        "warning",
        "not an interface name or a network",
    ),
    ("OMPI_MCA_mpi_leave_pinned=maybe", "OMPI_MCA_mpi_leave_pinned", "warning", "false, true"),
    ("OMPI_MCA_btl_tcp_sndbuf=big", "OMPI_MCA_btl_tcp_sndbuf", "warning", "as the integer 0"),
    ("OMPI_MCA_btl_base_verbose=loud", "OMPI_MCA_btl_base_verbose", "error", "to one of none, error"),
    ("OMPI_MCA_mpi_cuda_support=1", "OMPI_MCA_mpi_cuda_support", "error", "has an unknown value"),
    ("UCX_TCP_NODELAY=on", "UCX_TCP_NODELAY", "warning", "y, n, yes and no"),
    ("UCX_LOG_LEVEL=verbose", "UCX_LOG_LEVEL", "warning", "FATAL, ERROR"),
    ("FI_EFA_FORK_SAFE=maybe", "FI_EFA_FORK_SAFE", "warning", "true, false, yes"),
    ("FI_LOG_LEVEL=1", "FI_LOG_LEVEL", "warning", "warn, trace, info and debug"),
    # What one variable makes of another.
    (
        "NCCL_IB_DISABLE=1 NCCL_IB_HCA=mlx5_0,mlx5_1",
        "NCCL_IB_DISABLE",
        "warning",
        "so NCCL_IB_HCA has no effect",
    ),
    ("NCCL_NET=Socket NCCL_IB_HCA=mlx5", "NCCL_NET", "warning", "NCCL_IB_HCA"),
    (
        "NCCL_NET=IB NCCL_IB_DISABLE=1",
        "NCCL_NET",
        "error",
        "requires InfiniBand, which NCCL_IB_DISABLE=1 disables",
    ),
    ("NCCL_NET=Socket FI_EFA_USE_DEVICE_RDMA=1", "NCCL_NET", "warning", "FI_EFA_USE_DEVICE_RDMA"),
    ("NCCL_NET=Socket NCCL_NET_PLUGIN=aws-ofi", "NCCL_NET_PLUGIN", "warning", "uses no network plugin"),
    ("NCCL_NET_PLUGIN=none OFI_NCCL_PROTOCOL=RDMA", "NCCL_NET_PLUGIN", "warning", "OFI_NCCL_PROTOCOL"),
    ("FI_PROVIDER=tcp FI_EFA_USE_DEVICE_RDMA=1", "FI_PROVIDER", "warning", "disables EFA"),
    ("NCCL_MIN_NCHANNELS=16 NCCL_MAX_NCHANNELS=8", "NCCL_MIN_NCHANNELS", "warning", "larger than"),
    ("NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", "NCCL_NSOCKS_PERTHREAD", "warning", "PERTHREAD=4"),
    ("NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL", "NCCL_P2P_LEVEL", "warning", "no effect"),
    (
        "TORCH_NCCL_BLOCKING_WAIT=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "warning", "PyTorch ignores"),
    ),
    (
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "warning",
        "empty dumps",
    ),
    (
        "OMPI_MCA_btl_tcp_if_exclude=lo,docker0",
        "OMPI_MCA_btl_tcp_if_exclude",
        "error",
        "no TCP between hosts",
    ),
    (
        "OMPI_MCA_btl_openib_allow_ib=1",
        "OMPI_MCA_btl_openib_allow_ib",
        "warning",
        "'^openib' disables openib",
    ),
    ("OMPI_MCA_btl=self,vader OMPI_MCA_btl_tcp_links=2", "OMPI_MCA_btl_tcp_links", "warning", "disables tcp"),
    (
        "OMPI_MCA_coll_tuned_allreduce_algorithm=4",
        "OMPI_MCA_coll_tuned_allreduce_algorithm",
        "warning",
        "rules=1",
    ),
    ("HOROVOD_CONTROLLER=gloo", "HOROVOD_CONTROLLER", "error", "selects Gloo"),
    ("HOROVOD_AUTOTUNE_LOG=/tmp/tune.csv", "HOROVOD_AUTOTUNE_LOG", "warning", "HOROVOD_AUTOTUNE=1"),
    (
        "HOROVOD_STALL_CHECK_DISABLE=1 HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=120",
        *("HOROVOD_STALL_CHECK_DISABLE", "warning", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS has no effect"),
    ),
    # What costs speed.
    ("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL", "NCCL_DEBUG_SUBSYS", "warning", "a line for every collective"),
    ("NCCL_DEBUG=TRACE NCCL_DEBUG_SUBSYS=INIT,COLL", "NCCL_DEBUG_SUBSYS", "warning", "every collective"),
    ("NCCL_DEBUG=TRACE", "NCCL_DEBUG", "warning", "set NCCL_DEBUG=INFO"),
    ("CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING", "warning", "each CUDA kernel"),
    ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "TORCH_DISTRIBUTED_DEBUG", "warning", "extra collective"),
    ("TORCH_NCCL_BLOCKING_WAIT=1", "TORCH_NCCL_BLOCKING_WAIT", "warning", "waits for each collective"),
    ("NCCL_P2P_DISABLE=1", "NCCL_P2P_DISABLE", "warning", "direct memory access"),
    ("NCCL_SHM_DISABLE=1", "NCCL_SHM_DISABLE", "warning", "communicate over the network"),
    ("HOROVOD_TIMELINE=/tmp/timeline.json", "HOROVOD_TIMELINE", "warning", "every tensor"),
]

# Each line must come through without a word.
GOOD = """
NCCL_DEBUG=INFO
NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH NCCL_DEBUG_FILE=/tmp/nccl.%h.%p
NCCL_DEBUG=info NCCL_DEBUG_SUBSYS=^COLL,CALL
NCCL_DEBUG=TRACE NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG=WARN
NCCL_DEBUG=VERSION NCCL_DEBUG_TIMESTAMP_LEVELS=ALL
NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4
NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=4
NCCL_IB_DISABLE=0 NCCL_IB_HCA=mlx5_0,mlx5_1 NCCL_IB_GID_INDEX=3 NCCL_IB_TC=106 NCCL_IB_SL=0
NCCL_IB_HCA==mlx5_0:1,mlx5_1:1 NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=7 NCCL_IB_QPS_PER_CONNECTION=4
NCCL_IB_HCA=^mlx5_2 NCCL_IB_PCI_RELAXED_ORDERING=1 NCCL_IB_SPLIT_DATA_ON_QPS=0 NCCL_IB_AR_THRESHOLD=0
NCCL_IB_DISABLE=1
NCCL_IB_DISABLE=1 NCCL_SOCKET_FAMILY=AF_INET NCCL_P2P_LEVEL=NVL
NCCL_IB_DISABLE=false NCCL_IB_HCA=mlx5_0
NCCL_NET=IB NCCL_IB_HCA=mlx5 NCCL_NET_GDR_LEVEL=PHB NCCL_NET_GDR_READ=1 NCCL_CROSS_NIC=1
NCCL_NET=Socket
NCCL_NET_PLUGIN=none NCCL_TUNER_PLUGIN=none
NCCL_NET_GDR_LEVEL=3 NCCL_P2P_LEVEL=5
NCCL_P2P_DISABLE=0 NCCL_SHM_DISABLE=0 NCCL_P2P_LEVEL=SYS
NCCL_ALGO=Ring NCCL_PROTO=Simple
NCCL_ALGO=RING,tree NCCL_PROTO=^LL128
NCCL_ALGO=ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring NCCL_PROTO=LL,Simple;allreduce:^LL
NCCL_ALGO=NVLSTree NCCL_NVLS_ENABLE=1 NCCL_COLLNET_ENABLE=1
NCCL_MIN_NCHANNELS=8 NCCL_MAX_NCHANNELS=16 NCCL_MIN_CTAS=4 NCCL_MAX_CTAS=32 NCCL_CGA_CLUSTER_SIZE=4
NCCL_BUFFSIZE=8388608 NCCL_NTHREADS=256 NCCL_LL128_NTHREADS=640
NCCL_BUFFSIZE=0x400000 NCCL_P2P_NET_CHUNKSIZE=524288
NCCL_LAUNCH_MODE=PARALLEL NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 NCCL_NVLS_ENABLE=0
NCCL_TOPO_FILE=/opt/topo.xml NCCL_GRAPH_FILE=/opt/graph.xml NCCL_IGNORE_CPU_AFFINITY=1
NCCL_COLLNET_ENABLE=1 NCCL_SHARP_GROUP_SIZE_THRESH=2 NCCL_PLUGIN_P2P=ib
NCCL_FASTRAK_CTRL_DEV=eth0 NCCL_FASTRAK_NUM_FLOWS=2 NCCL_TUNER_CONFIG_PATH=/usr/local/nvidia/a3.textproto
NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth1,eth2 NCCL_DYNAMIC_CHUNK_SIZE=524288
NCCL_VERSION=2.29.7-1 NCCL_HOME=/usr/local/nccl NCCL_TESTS_SPLIT=DIV2
NCCL_DMABUF_ENABLE=1 NCCL_PXN_DISABLE=1 NCCL_NVB_DISABLE=0 NCCL_MNNVL_ENABLE=2 NCCL_RAS_ENABLE=0
NCCL_CHECK_MODE=DEFAULT NCCL_SET_THREAD_NAME=1 NCCL_GDRCOPY_ENABLE=1 NCCL_WORK_FIFO_BYTES=1048576
NCCL_COMM_ID=192.0.2.11:45000 NCCL_HOSTID=gpu1 NCCL_CONF_FILE=/etc/nccl.conf NCCL_NO_CACHE=ALL
TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600
TORCH_NCCL_ASYNC_ERROR_HANDLING=3 TORCH_NCCL_BLOCKING_WAIT=0
TORCH_NCCL_ENABLE_MONITORING=false TORCH_NCCL_AVOID_RECORD_STREAMS=True TORCH_NCCL_HIGH_PRIORITY=yes
TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/tmp/fr_
TORCH_NCCL_USE_COMM_NONBLOCKING=1 TORCH_NCCL_RANKS_PER_ROOT=64 TORCH_NCCL_NAN_CHECK=0
TORCH_DISTRIBUTED_DEBUG=INFO TORCH_CPP_LOG_LEVEL=INFO TORCH_SHOW_CPP_STACKTRACES=1
TORCH_DISTRIBUTED_DEBUG=off TORCH_DIST_INIT_BARRIER=1
TORCH_LOGS=dynamo TORCH_HOME=/data/torch TORCH_CUDA_ARCH_LIST=8.0 TORCHINDUCTOR_CACHE_DIR=/tmp/i
GLOO_DEVICE_TRANSPORT=TCP GLOO_LOG_LEVEL=INFO TORCH_GLOO_LAZY_INIT=1
OMP_NUM_THREADS=8 MKL_NUM_THREADS=8 OMP_PROC_BIND=close OMP_PLACES=cores
OMP_NUM_THREADS=4,2
CUDA_DEVICE_MAX_CONNECTIONS=1 CUDA_VISIBLE_DEVICES=0,1 PYTORCH_ALLOC_CONF=expandable_segments:True
CUDA_LAUNCH_BLOCKING=0
HOROVOD_FUSION_THRESHOLD=67108864 HOROVOD_CYCLE_TIME=3.5 HOROVOD_CACHE_CAPACITY=2048
HOROVOD_FUSION_THRESHOLD=0 HOROVOD_HIERARCHICAL_ALLREDUCE=1 HOROVOD_HIERARCHICAL_ALLGATHER=0
HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=/tmp/tune.csv HOROVOD_AUTOTUNE_WARMUP_SAMPLES=3
HOROVOD_STALL_CHECK_TIME_SECONDS=120 HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=600 HOROVOD_LOG_LEVEL=WARNING
HOROVOD_NUM_NCCL_STREAMS=2 HOROVOD_MPI_THREADS_DISABLE=1 HOROVOD_THREAD_AFFINITY=1,2
HOROVOD_CONTROLLER=mpi HOROVOD_CPU_OPERATIONS=MPI HOROVOD_LOG_HIDE_TIME=1
OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_links=2 OMPI_MCA_btl_tcp_sndbuf=4M
OMPI_MCA_btl=^openib,uct OMPI_MCA_pml=ob1 OMPI_MCA_osc=^ucx OMPI_MCA_coll=^hcoll
OMPI_MCA_btl=openib,self,vader OMPI_MCA_btl_openib_allow_ib=true OMPI_MCA_btl_openib_if_include=mlx5_0:1
OMPI_MCA_pml=ucx UCX_NET_DEVICES=mlx5_0:1 UCX_TLS=rc,sm,self UCX_IB_GID_INDEX=3
OMPI_MCA_btl_base_verbose=30 OMPI_MCA_pml_base_verbose=info OMPI_MCA_mpi_show_mca_params=all
OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_allreduce_algorithm=ring
OMPI_MCA_coll_tuned_use_dynamic_rules=true OMPI_MCA_coll_tuned_allreduce_algorithm=4
OMPI_MCA_mpi_leave_pinned=1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_warn_on_fork=0
OMPI_MCA_btl_tcp_bandwidth_eth0=1000 OMPI_MCA_btl_tcp_latency_eth0=100 OMPI_MCA_mpi_cuda_support=0
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
UCX_TLS=tcp,self UCX_TCP_CM_REUSEADDR=y UCX_LOG_LEVEL=warn UCX_MEMTYPE_CACHE=n UCX_RNDV_SCHEME=get_zcopy
UCX_RC_TIMEOUT=2s UCX_RC_MLX5_TIMEOUT=2s UCX_IB_TRAFFIC_CLASS=106 UCX_UD_TIMEOUT=5m UCX_RNDV_THRESH=8192
UCX_CUDA_COPY_MAX_REG_RATIO=1 UCX_POSIX_SEG_SIZE=8k UCX_MM_SEG_SIZE=8k UCX_IB_PCI_RELAXED_ORDERING=on
FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1 RDMAV_FORK_SAFE=1 NCCL_PROTO=simple
FI_PROVIDER=^tcp FI_EFA_USE_HUGE_PAGE=0 FI_EFA_ENABLE_SHM_TRANSFER=1 FI_LOG_LEVEL=warn
FI_PROVIDER=tcp FI_TCP_IFACE=eth0 FI_MR_CACHE_MONITOR=memhooks FI_CXI_ATS=0
OFI_NCCL_PROTOCOL=RDMA OFI_NCCL_NIC_DUP_CONNS=4 OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK=true
FI_NAMESPACE=x FIREWALL=on NCCLX=1 UCXPY_LOG_LEVEL=DEBUG TP_SIZE=8 HORO=1 nccl_debug=TRACE
HF_HOME=/data/hf WANDB_MODE=offline TOKENIZERS_PARALLELISM=false PYTHONPATH=/code
""".strip().splitlines()

# Of one host's own: what would take the toolkit's choice from all hosts is right for one.
GOOD_FOR_ONE_HOST = """
NCCL_SOCKET_IFNAME=eth0
NCCL_SOCKET_IFNAME==eth0,eth1 GLOO_SOCKET_IFNAME=eth0
NCCL_SOCKET_IFNAME=eth,en,bond
NCCL_SOCKET_IFNAME=^docker,lo,veth
NCCL_SOCKET_IFNAME=^=docker0
GLOO_SOCKET_IFNAME=enp3s0f0np0 TP_SOCKET_IFNAME=enp3s0f0np0
GLOO_SOCKET_IFNAME=eth0,eth1
GLOO_SOCKET_IFNAME=bond0.100
OMPI_MCA_btl_tcp_if_include=10.0.0.0/24,192.168.7.0/24
OMPI_MCA_btl_tcp_if_include=eth0
NCCL_OOB_NET_IFNAME==eth0
""".strip().splitlines()
