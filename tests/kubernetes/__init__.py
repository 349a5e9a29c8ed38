"""The chart and the image on a real Kubernetes of two nodes, which stands on this machine and in its own namespaces.

    make test-kubernetes                             # all of it; build/kubernetes.md has the table
    KEEP_CLUSTER=dev python -m pytest -m kubernetes tests/kubernetes/test_changes.py -s -k install

It needs root, Debian's packages (`programs.DEBIAN`), and Go, Rust and package indexes for the first run, which builds
all programs and images into `QUARRY_KUBERNETES_CACHE` (`~/.cache/quarry-kubernetes`): ten to thirty minutes. Later runs
build what has changed. Where something is missing, all tests are skipped with the reason. With KEEP_CLUSTER
the cluster of this name stays up after the run, and the next run uses it again, with new images if the source has
changed; `python -m tests.kubernetes end NAME` ends it, and `python -m tests.kubernetes kubectl NAME get pods -A`
asks it.

| part | what it is |
|---|---|
| control plane | etcd, kube-apiserver, controller manager, scheduler and CoreDNS, at 172.30.0.1 |
| `node1`, `node2` | containerd, runc, kubelet, kube-proxy, kube-router for NetworkPolicies; a network for each |
| laptop | a network beside the nodes, for clients outside: it reaches nodes and the API server, not pods |
| `client-node1`, `client-node2` | pods in the namespace `clients`, with the official clients, on one node each |
| class `disks` | volumes that follow a pod to another node, as block storage does; the default |
| class `local` | volumes that stay with their node, and are gone with it |

Fixtures: `cluster` (`cluster.Cluster`, one for the session), `release` (`release.Release`, not installed yet, in a
namespace of its own with Pod Security `restricted`) and `table`. A test is:

    def test_restart(release: Release, table: Table) -> None:
        release.install({"replicas": 3})           # Helm, with `release.SMALL` and these values; waits until ready
        release.create_topics()
        began_s = time.monotonic()
        with release.flows() as results:           # official clients of both protocols send and receive
            release.cluster.kubectl("rollout", "restart", "statefulset/quarry", "--namespace", release.namespace)
            release.wait_until_rolled_out()
        table.add("rolling restart", results, time.monotonic() - began_s)
        assert not any(each.lost for each in results)

`object_store` is the address of an S3 server in the cluster. `reader.Reader` types what a page of the documentation
says, on the laptop. `reader.HERE` lists the few texts of the pages that are replaced.

`cluster` has `kubectl(...)`, `helm(...)`, `exec(pod, ...)`, `get` and `all` (objects as dictionaries), `apply(object,
...)`, `port_forward(...)`, `outside(...)` (a program on the laptop) and `node(1)`, which has `stop_kubelet()` and
`start_kubelet()`, `cut_network()` and `restore_network()`, `lose_disk()`, `kill_containers()` and `runtime(...)` (ctr).
Pods stay 10 s on a node that does not answer, not 300 s, and a node is away after 16 s.
"""
