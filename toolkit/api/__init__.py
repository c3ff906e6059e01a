"""The Python API: ``Cluster`` and ``ClusterJob``. The command line uses the same functions."""
