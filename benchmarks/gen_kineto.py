#!/usr/bin/env python3
"""Deterministic generators of PyTorch-profiler (Kineto) Chrome traces.

synth  GPU-like trace of LLM inference, stdlib only.  Event kinds, field names and
       text layout follow torch 2.13's export_chrome_trace (one field per line,
       ``baseTimeNanoseconds``); ``--layout old`` follows torch <= 2.3 (absolute ts), ``compact``
       and ``indent`` are what tools that re-dump traces write (sglang, vLLM; json.dump).
       Writes OUT and OUT.truth.json (exact integer-nanosecond answers), so the same
       file serves as a performance and as a correctness fixture.
live   a real torch.profiler run of a small random-weight decoder on CPU (needs torch).
       Event *count* is repeatable; times of course are not.

gen_kineto.py synth --kernels 100000 --out k1e5.json
gen_kineto.py synth --kernels 100000 --graph-decode --layer-ranges --out g.json.gz
gen_kineto.py live  --events 100000 --out live.json
"""

import argparse
import gzip
import json
import random
import sys
import time
from pathlib import Path

PID, TID, DEV, CTX, STREAM, COPY_STREAM = 4242, 4242, 0, 1, 7, 20
BASE_NS = 1790857026000000000  # baseTimeNanoseconds
T0_NS = 3910892163000000  # first ts, relative to BASE_NS

EW = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, {}ul> >"
    "(int, at::native::{}, std::array<char*, {}ul>)"
)
GEMM = "ampere_bf16_s16816gemm_bf16_{}_ldg8_f2f_stages_64x4_tn"
GEMV = (
    "void gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false, true, "
    "true, false, 7, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__nv_bfloat16 const>>>"
)


def ew(op, n):
    return EW.format(op, n, op, n)


# One decoder layer: (cpu_op chain outermost first, kernel in prefill, kernel in decode,
#                     ns in prefill, ns in decode, launch api)
LAYER = [
    (
        ("aten::to", "aten::_to_copy", "aten::copy_"),
        ew("bfloat16tofloat32_copy_kernel_cuda", 2),
        None,
        9800,
        1500,
        0,
    ),
    (("aten::pow",), ew("pow_tensor_scalar_kernel_impl<float, float>", 2), None, 9100, 1400, 0),
    (
        ("aten::mean",),
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>)",
        None,
        8300,
        2400,
        0,
    ),
    (("aten::add",), ew("CUDAFunctorOnSelf_add<float>", 2), None, 1900, 1300, 0),
    (("aten::rsqrt",), ew("rsqrt_kernel_cuda", 2), None, 1900, 1300, 0),
    (
        ("aten::mul",),
        ew("BinaryFunctor<float, float, float, binary_internal::MulFunctor<float> >", 3),
        None,
        12300,
        1500,
        0,
    ),
    (("aten::linear", "aten::matmul", "aten::mm"), GEMM.format("128x128"), GEMV, 212000, 21500, 0),
    (("aten::linear", "aten::matmul", "aten::mm"), GEMM.format("128x64"), GEMV, 58000, 6600, 0),
    (("aten::linear", "aten::matmul", "aten::mm"), GEMM.format("128x64"), GEMV, 58000, 6600, 0),
    (("aten::neg",), ew("neg_kernel_cuda", 2), None, 4100, 1300, 0),
    (
        ("aten::cat",),
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 64, 64>, at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
        None,
        7900,
        1900,
        0,
    ),
    (
        ("aten::mul",),
        ew(
            "BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, binary_internal::MulFunctor<float> >",
            3,
        ),
        None,
        5200,
        1400,
        0,
    ),
    (("aten::add",), ew("CUDAFunctor_add<c10::BFloat16>", 3), None, 6100, 1400, 0),
    (
        (
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_flash_attention_forward",
        ),
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>(Flash_fwd_params)",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >, false, false, false, false, true, false, true, false>(Flash_fwd_params)",
        96000,
        7800,
        0,
    ),
    (("aten::linear", "aten::matmul", "aten::mm"), GEMM.format("128x128"), GEMV, 212000, 21500, 0),
    (("aten::linear", "aten::matmul", "aten::mm"), GEMM.format("256x128"), GEMV, 731000, 73100, 0),
    (("aten::silu",), ew("silu_kernel", 2), None, 18200, 1600, 0),
    (("aten::linear", "aten::matmul", "aten::mm"), GEMM.format("256x128"), GEMV, 731000, 73100, 0),
    (("triton_poi_fused_mul_silu_0",), "triton_poi_fused_mul_silu_0", None, 27100, 1700, 1),
    (("aten::linear", "aten::matmul", "aten::mm"), GEMM.format("256x64"), GEMV, 742000, 74000, 0),
]
SHAPELESS = ("aten::view", "aten::transpose", "aten::empty")  # ops that launch nothing


def us(ns):
    return f"{ns // 1000}.{ns % 1000:03d}"


class Writer:
    """Buffers event text; knows both text layouts."""

    def __init__(self, fh, layout):
        self.fh, self.buf, self.n, self.first = fh, [], 0, True
        self.base = BASE_NS if layout == "old" else 0
        self.new = layout != "old"
        self.style = layout
        self.cats = {}

    def raw(self, text):
        self.fh.write(text)

    def emit(self, text, cat):
        if self.style == "compact":
            text = " ".join(x.strip() for x in text.split("\n"))
        elif self.style == "indent":
            text = json.dumps(json.loads(text), indent=2)
        self.buf.append(text)
        self.cats[cat] = self.cats.get(cat, 0) + 1
        self.n += 1
        if len(self.buf) >= 8192:
            self.flush()

    def flush(self):
        if self.buf:
            self.fh.write(("" if self.first else ",\n") + ",\n".join(self.buf))
            self.first = False
            self.buf = []

    def x(self, cat, name, pid, tid, ts, dur, args):
        name = name.replace("\\", "\\\\").replace('"', '\\"')
        ts = us(ts + self.base)
        if self.new:
            self.emit(
                f'  {{\n    "ph": "X",\n    "cat": "{cat}",\n    "name": "{name}",\n    "pid": {pid},\n'
                f'    "tid": {tid},\n    "ts": {ts},\n    "dur": {us(dur)}\n    ,\n    "args": {{\n      {args}\n    }}\n  }}',
                cat,
            )
        else:
            self.emit(
                f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
                f'    "ts": {ts}, "dur": {us(dur)},\n    "args": {{\n      {args}\n    }}\n  }}',
                cat,
            )

    def flow(self, ph, fid, pid, tid, ts):
        bp = ', "bp": "e"' if ph == "f" else ""
        ts = us(ts + self.base)
        if self.new:
            self.emit(
                f'  {{\n    "ph": "{ph}",\n    "id": {fid},\n    "pid": {pid},\n    "tid": {tid},\n    "ts": {ts},\n'
                f'    "cat": "ac2g",\n    "name": "ac2g"{bp}\n  }}',
                "ac2g",
            )
        else:
            self.emit(
                f'  {{\n    "ph": "{ph}", "id": {fid}, "pid": {pid}, "tid": {tid}, "ts": {ts},\n'
                f'    "cat": "ac2g", "name": "ac2g"{bp}\n  }}',
                "ac2g",
            )

    def meta(self, name, pid, tid, args):
        self.emit(
            f'  {{\n    "ph": "M",\n    "name": "{name}",\n    "ts": {us(T0_NS + self.base)},\n    "pid": {pid},\n'
            f'    "tid": {tid},\n    "args": {{\n      {args}\n    }}\n  }}',
            "M",
        )


def synth(a):
    rng = random.Random(a.seed)
    rnd = rng.random
    op = gzip.open if a.out.endswith(".gz") else open
    fh = op(a.out, "wt", encoding="utf-8", newline="\n")
    w = Writer(fh, a.layout)
    w.raw(
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA A100-SXM4-80GB", '
        '"totalGlobalMem": 85899345920,\n      "computeMajor": 8, "computeMinor": 0,\n      "maxThreadsPerBlock": 1024, '
        '"maxThreadsPerMultiprocessor": 2048,\n      "regsPerBlock": 65536, "regsPerMultiprocessor": 65536, "warpSize": 32,\n'
        '      "sharedMemPerBlock": 49152, "sharedMemPerMultiprocessor": 167936,\n      "numSms": 108, "sharedMemPerBlockOptin": 166912\n'
        '    }\n  ],\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n  "record_shapes": 1,\n'
    )
    if a.layout != "old":
        w.raw(f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS},\n')
    w.raw('  "traceEvents": [\n')
    for pid, lab in ((PID, "CPU"), (DEV, "GPU 0")):
        w.meta("process_name", pid, 0, '"name": "python"')
        w.meta("process_labels", pid, 0, f'"labels": "{lab}"')
        w.meta("process_sort_index", pid, 0, f'"sort_index": {pid if pid else 5000000}')
    for s in (STREAM, COPY_STREAM):
        w.meta("thread_name", DEV, s, f'"name": "stream {s} "')
    w.meta("thread_name", PID, TID, f'"name": "thread {TID} (python)"')

    t = T0_NS + 1_000_000  # CPU clock
    gpu = t  # stream 7 is free from here
    busy = 0
    corr, ext, ev, nk, phase_no = 1000, 0, 0, 0, 0
    names, phases, per_phase_name = {}, {}, {}
    nmemcpy, memcpy_ns = 0, 0
    first_k, last_k = None, 0

    def cpu_op(name, ts, dur, dims):
        nonlocal ext, ev
        ext += 1
        ev += 1
        sh = (
            (
                f'"Concrete Inputs": ["", ""], "Input type": ["c10::BFloat16", "c10::BFloat16"], '
                f'"Input Strides": [[{dims}, 1], [1, {dims}]], "Input Dims": [[1, {dims}], [{dims}, {dims}]], '
            )
            if a.shapes
            else ""
        )
        w.x(
            "cpu_op",
            name,
            PID,
            TID,
            ts,
            dur,
            f'"External id": {ext},"Record function id": 0, {sh}"Ev Idx": {ev}',
        )

    def kernel(name, ts, dur, ext_id, c, gx, bx, graph_node):
        nonlocal nk, first_k, last_k, busy
        g = f', "graph id": 3, "graph node id": {graph_node}' if graph_node is not None else ""
        w.x(
            "kernel",
            name,
            DEV,
            STREAM,
            ts,
            dur,
            f'"External id": {ext_id},"queued": 0, "device": {DEV}, "context": {CTX}, "stream": {STREAM}, "correlation": {c}, '
            f'"registers per thread": 40, "shared memory": 0, "blocks per SM": {gx / 108:.6g}, "warps per SM": {gx * bx / 3456:.6g}, '
            f'"grid": [{gx}, 1, 1], "block": [{bx}, 1, 1], "est. achieved occupancy %": 50{g}',
        )
        nk += 1
        busy += dur
        if first_k is None:
            first_k = ts
        last_k = ts + dur
        for d, k in ((names, name), (phases, phase), (per_phase_name, phase + "\t" + name)):
            r = d.setdefault(k, [0, 0])
            r[0] += 1
            r[1] += dur

    while nk < a.kernels:
        phase = "prefill" if phase_no % (a.decode_steps + 1) == 0 else "decode"
        phase_no += 1
        pre = phase == "prefill"
        ann0, gpu0 = t, None
        ext += 1
        ann_ext = ext
        t += 3000
        graphed = a.graph_decode and not pre
        if graphed:
            corr += 1
            g_corr, g_ts = corr, t
            w.x(
                "cuda_runtime",
                "cudaGraphLaunch",
                PID,
                TID,
                t,
                41000,
                f'"External id": {ann_ext}, "cbid": 311, "correlation": {g_corr}',
            )
            w.flow("s", g_corr, PID, TID, t)
            t += 43000
        for layer in range(a.layers):
            if nk >= a.kernels:
                break
            lay0 = t
            for i, (chain, kp, kd, dp, dd, api) in enumerate(LAYER):
                if nk >= a.kernels:
                    break
                name = kp if (pre or kd is None) else kd
                base = dp if pre else dd
                dur = int(base * (0.92 + 0.16 * rnd()))
                gx, bx = (1 << (6 + i % 7)) * (4 if pre else 1), 128 << (i % 2)
                if graphed:
                    start = max(gpu + 900, g_ts + 9000)
                    kernel(name, start, dur, ann_ext, g_corr, gx, bx, 100 + layer * len(LAYER) + i)
                    if gpu0 is None:
                        gpu0 = start
                        w.flow("f", g_corr, DEV, STREAM, start)
                    gpu = start + dur
                    continue
                if i % 3 == 0:  # ops that launch no kernel
                    cpu_op(SHAPELESS[(i // 3) % 3], t, 1100, 4096)
                    t += 1300
                depth = len(chain)
                launch_dur = 4200 + int(2600 * rnd())
                for p in range(a.python_per_kernel):  # with_stack=True: frames around the op
                    ev += 1
                    w.x(
                        "python_function",
                        f"transformers/models/llama/modeling_llama.py({100 + p}): forward",
                        PID,
                        TID,
                        t - 50 * (a.python_per_kernel - p),
                        2100 * depth + launch_dur + 2000 + 100 * (a.python_per_kernel - p),
                        f'"Python parent id": {ev - 1 if p else 0}, "Python id": {ev}, "Ev Idx": {ev}',
                    )
                t_launch = t + 2100 * depth
                end = t_launch + launch_dur + 700
                for d, o in enumerate(chain):
                    cpu_op(o, t + 2100 * d, end + 400 * (depth - d) - (t + 2100 * d), 4096)
                corr += 1
                if api:
                    w.x(
                        "cuda_driver",
                        "cuLaunchKernel",
                        PID,
                        TID,
                        t_launch,
                        launch_dur,
                        f'"External id": {ext}, "cbid": 307, "correlation": {corr}',
                    )
                else:
                    w.x(
                        "cuda_runtime",
                        "cudaLaunchKernel",
                        PID,
                        TID,
                        t_launch,
                        launch_dur,
                        f'"External id": {ext}, "cbid": 211, "correlation": {corr}',
                    )
                w.flow("s", corr, PID, TID, t_launch)
                start = max(gpu + 900, t_launch + 5200)
                kernel(name, start, dur, ext, corr, gx, bx, None)
                w.flow("f", corr, DEV, STREAM, start)
                if gpu0 is None:
                    gpu0 = start
                gpu = start + dur
                t = end + 400 * depth + 800
            if a.layer_ranges:
                ext += 1
                ev += 1
                w.x(
                    "user_annotation",
                    f"layer.{layer}",
                    PID,
                    TID,
                    lay0,
                    t - lay0,
                    f'"External id": {ext},"Record function id": 0, "Ev Idx": {ev}',
                )
        # sampled token comes back: cudaMemcpyAsync + sync
        corr += 1
        w.x(
            "cuda_runtime",
            "cudaMemcpyAsync",
            PID,
            TID,
            t,
            6000,
            f'"External id": {ann_ext}, "cbid": 41, "correlation": {corr}',
        )
        w.flow("s", corr, PID, TID, t)
        start = max(gpu + 900, t + 5000)
        w.x(
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Pinned)",
            DEV,
            STREAM,
            start,
            1600,
            f'"External id": {ann_ext},"device": {DEV}, "context": {CTX}, "stream": {STREAM}, "correlation": {corr}, "bytes": 8, "memory bandwidth (GB/s)": 0.005',
        )
        w.flow("f", corr, DEV, STREAM, start)
        nmemcpy, memcpy_ns = nmemcpy + 1, memcpy_ns + 1600
        gpu = start + 1600
        corr += 1
        sync0 = t + 6500
        t = max(gpu + 2000, sync0 + 1000)
        w.x(
            "cuda_runtime",
            "cudaStreamSynchronize",
            PID,
            TID,
            sync0,
            t - sync0,
            f'"External id": {ann_ext}, "cbid": 131, "correlation": {corr}',
        )
        t += 2000
        ev += 1
        w.x(
            "user_annotation",
            phase,
            PID,
            TID,
            ann0,
            t - ann0,
            f'"External id": {ann_ext},"Record function id": 0, "Ev Idx": {ev}',
        )
        w.x("gpu_user_annotation", phase, DEV, STREAM, gpu0, gpu - gpu0, f'"External id": {ann_ext}')
        t += 20000
    w.x("Trace", "PyTorch Profiler (0)", '"Spans"', '"PyTorch Profiler"', T0_NS, t - T0_NS, '"Op count": 0')
    w.emit(
        f'  {{\n    "ph": "i",\n    "s": "g",\n    "name": "Record Window End",\n    "pid": "",\n    "tid": "",\n    "ts": {us(t + w.base)}\n  }}',
        "i",
    )
    w.flush()
    w.raw(f'\n  ],\n  "traceName": "{a.out}"\n}}\n')
    fh.close()
    truth = {
        "events": w.n,
        "by_cat": w.cats,
        "kernels": nk,
        "kernel_ns": busy,
        "gpu_span_ns": last_k - first_k,
        "phase_instances": phase_no,
        "memcpy": [nmemcpy, memcpy_ns],
        "by_phase": phases,
        "by_name": names,
        "by_phase_name": per_phase_name,
        "args": vars(a),
    }
    with Path(a.out + ".truth.json").open("w") as f:
        json.dump(truth, f, indent=1, sort_keys=True, default=str)
    print(json.dumps({"out": a.out, "events": w.n, "kernels": nk, "by_cat": w.cats}))


def live(a):
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.manual_seed(a.seed)
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(s, d, h):
            super().__init__()
            s.h, s.n1, s.n2 = h, nn.RMSNorm(d), nn.RMSNorm(d)
            s.qkv, s.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
            s.g, s.u, s.dn = (
                nn.Linear(d, 4 * d, bias=False),
                nn.Linear(d, 4 * d, bias=False),
                nn.Linear(4 * d, d, bias=False),
            )

        def forward(s, x, kv):
            b, t, d = x.shape
            q, k, v = s.qkv(s.n1(x)).view(b, t, 3, s.h, d // s.h).permute(2, 0, 3, 1, 4)
            if kv is not None:
                k, v = torch.cat((kv[0], k), 2), torch.cat((kv[1], v), 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
            x = x + s.o(y.transpose(1, 2).reshape(b, t, d))
            z = s.n2(x)
            return x + s.dn(F.silu(s.g(z)) * s.u(z)), (k, v)

    d, h, layers = 64, 4, 4
    emb, blocks, head = (
        nn.Embedding(256, d),
        nn.ModuleList(Block(d, h) for _ in range(layers)),
        nn.Linear(d, 256),
    )

    @torch.inference_mode()
    def request(steps):
        with record_function("prefill"):
            x, kvs = emb(torch.arange(16)[None]), []
            for b in blocks:
                x, kv = b(x, None)
                kvs.append(kv)
            tok = head(x[:, -1]).argmax(-1, keepdim=True)
        for _ in range(steps):
            with record_function("decode"):
                x = emb(tok)
                for i, b in enumerate(blocks):
                    x, kvs[i] = b(x, kvs[i])
                tok = head(x[:, -1]).argmax(-1, keepdim=True)

    kw = {"activities": [ProfilerActivity.CPU], "record_shapes": a.shapes, "with_stack": a.with_stack}
    request(4)
    with profile(**kw) as p:
        request(a.decode_steps)
    per = max(1, len(p.events()))
    reqs = max(1, round(a.events / per))
    t0 = time.perf_counter()
    for _ in range(reqs):
        request(a.decode_steps)
    bare = time.perf_counter() - t0
    t0 = time.perf_counter()
    with profile(**kw) as p:
        for _ in range(reqs):
            request(a.decode_steps)
        t1 = time.perf_counter()
    t2 = time.perf_counter()
    p.export_chrome_trace(a.out)
    t3 = time.perf_counter()
    out = {
        "out": a.out,
        "requests": reqs,
        "events_per_request": per,
        "bare_s": bare,
        "profiled_s": t1 - t0,
        "profiler_stop_s": t2 - t1,
        "export_s": t3 - t2,
    }
    if a.key_averages:
        ka = p.key_averages()
        t4 = time.perf_counter()
        tab = ka.table(sort_by="self_cpu_time_total", row_limit=20)
        t5 = time.perf_counter()
        out.update(
            key_averages_s=t4 - t3, table_s=t5 - t4, events=len(p.events()), table_lines=tab.count("\n")
        )
    print(json.dumps(out))


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="cmd", required=True)
    s = sub.add_parser("synth")
    s.add_argument("--kernels", type=lambda v: int(float(v)), default=100000)
    s.add_argument("--layers", type=int, default=32)
    s.add_argument("--decode-steps", type=int, default=31, help="decode steps after each prefill")
    s.add_argument("--layout", choices=("new", "old", "compact", "indent"), default="new")
    s.add_argument(
        "--python-per-kernel",
        type=int,
        default=0,
        help="python_function events per launch, as with_stack=True (real: 3 to 100)",
    )
    s.add_argument("--graph-decode", action="store_true", help="decode steps are one cudaGraphLaunch each")
    s.add_argument("--layer-ranges", action="store_true", help="also a user_annotation per layer")
    s.add_argument("--no-shapes", dest="shapes", action="store_false")
    s.add_argument("--seed", type=int, default=0)
    s.add_argument("--out", required=True, help="*.json or *.json.gz")
    s.set_defaults(fn=synth)
    s = sub.add_parser("live")
    s.add_argument("--events", type=lambda v: int(float(v)), default=100000)
    s.add_argument("--decode-steps", type=int, default=31)
    s.add_argument("--shapes", action="store_true")
    s.add_argument("--with-stack", action="store_true")
    s.add_argument("--key-averages", action="store_true")
    s.add_argument("--seed", type=int, default=0)
    s.add_argument("--out", required=True)
    s.set_defaults(fn=live)
    a = ap.parse_args(argv)
    fn = a.__dict__.pop("fn")
    fn(a)


if __name__ == "__main__":
    sys.exit(main())
