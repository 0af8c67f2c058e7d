"""Start a real Ray cluster, say its address, and end it when standard input ends.

A head without GPUs, where clients connect, and two nodes with two made-up GPUs each, which all four have numbers of their own: on
one machine that is what tells them apart.
"""

import os
import sys

from ray.cluster_utils import Cluster

common = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 1, "num_gpus": 0, **common},
)
for gpus in ("0,1", "2,3"):
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    cluster.add_node(num_cpus=4, num_gpus=2, **common)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
