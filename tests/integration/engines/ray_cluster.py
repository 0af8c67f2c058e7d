"""Start a real Ray cluster, say its address, and end it when standard input ends.

A head without GPUs, where clients connect, and two nodes with two made-up GPUs each.
"""

import sys

from ray.cluster_utils import Cluster

common = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 1, "num_gpus": 0, **common},
)
for _ in range(2):
    cluster.add_node(num_cpus=4, num_gpus=2, **common)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
