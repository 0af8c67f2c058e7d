#!/usr/bin/env python3
"""Deterministic writer of Nsight Systems SQLite exports (LLM inference), stdlib only.

Column names, order and types equal the complete schema of nsys 2022.4 (3.0.0) and 2024.2, and of
real 2026.2 exports (3.25.0), chosen by --schema.  Like a real export: no indexes, integer ns.
`nsys stats` (2022.4) and nsys-ai 0.3 read the result.

Writes OUT and OUT.truth.json: exact integer answers by kernel, by (range, kernel) for every
enclosing range on the launching thread, and by innermost range; so the file is a performance
and a correctness fixture.

  gen_nsys_sqlite.py --kernels 1e5 --out n1e5.sqlite
  gen_nsys_sqlite.py --kernels 1e5 --graph-decode --registered --disorder 64 --out n.sqlite
  gen_nsys_sqlite.py --kernels 1e5 --op-ranges 4 --schema 2026.2 --out dense.sqlite   (as torch emit_nvtx)
"""

import argparse
import json
import random
import sqlite3
import sys
from pathlib import Path

VM = 1 << 48
PID, TID, TID2 = 8403, 8403, 8410
GPID = VM | PID << 24
GTID, GTID2 = GPID | TID, GPID | TID2
PUSHPOP, DOMAIN_CREATE = 59, 75

# (kernel short name, demangled, prefill ns, decode ns, sub-range)
LAYER = [
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::bfloat16tofloat32_copy_kernel_cuda, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        9800,
        1500,
        0,
    ),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::pow_tensor_scalar_kernel_impl<float, float>, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        9100,
        1400,
        0,
    ),
    (
        "reduce_kernel",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, (int)4>>(T3)",
        8300,
        2400,
        0,
    ),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::rsqrt_kernel_cuda, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        1900,
        1300,
        0,
    ),
    (
        "elementwise_kernel",
        "void at::native::elementwise_kernel<(int)128, (int)2, at::native::BinaryFunctor<float, float, float, MulFunctor>>(int, T3)",
        12300,
        1500,
        0,
    ),
    ("gemm_q", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn", 212000, 21500, 1),
    ("gemm_k", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", 58000, 6600, 1),
    ("gemm_k", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", 58000, 6600, 1),
    (
        "CatArrayBatchedCopy",
        "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)2>, unsigned int, (int)4, (int)64, (int)64>(T1 *, at::native::<unnamed>::CatArrInputTensorMetadata<T1, T2, T4, T5>, at::native::<unnamed>::TensorSizeStride<T2, (unsigned int)4>, int, T2)",
        7900,
        1900,
        1,
    ),
    (
        "elementwise_kernel",
        "void at::native::elementwise_kernel<(int)128, (int)4, at::native::CUDAFunctor_add<c10::BFloat16>>(int, T3)",
        6100,
        1400,
        1,
    ),
    (
        "flash_fwd_kernel",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>>, (bool)0, (bool)1, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0, (bool)0>(Flash_fwd_params)",
        96000,
        7800,
        1,
    ),
    ("gemm_q", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn", 212000, 21500, 1),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        6100,
        1400,
        0,
    ),
    (
        "reduce_kernel",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, (int)4>>(T3)",
        8300,
        2400,
        0,
    ),
    ("gemm_up", "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", 731000, 73100, 2),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::silu_kernel, std::array<char *, (unsigned long)2>>(int, T2, T3)",
        18200,
        1600,
        2,
    ),
    ("gemm_up", "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", 731000, 73100, 2),
    ("triton_poi_fused_mul_silu_0", "triton_poi_fused_mul_silu_0", 27100, 1700, 2),
    ("gemm_dn", "ampere_bf16_s16816gemm_bf16_256x64_ldg8_f2f_stages_64x4_tn", 742000, 74000, 2),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        6100,
        1400,
        0,
    ),
]
SUB = (None, "attn", "mlp")

INT, T, R = "INTEGER", "TEXT", "REAL"
IN, TN = "INTEGER NOT NULL", "TEXT NOT NULL"


def tables(schema):
    new, v26 = schema != "2022.4", schema == "2026.2"
    kern = (
        [("start", IN), ("end", IN), ("deviceId", IN), ("contextId", IN)]
        + ([("greenContextId", INT)] if new else [])
        + [
            ("streamId", IN),
            ("correlationId", INT),
            ("globalPid", INT),
            ("demangledName", IN),
            ("shortName", IN),
            ("mangledName", INT),
            ("launchType", INT),
            ("cacheConfig", INT),
            ("registersPerThread", IN),
            ("gridX", IN),
            ("gridY", IN),
            ("gridZ", IN),
            ("blockX", IN),
            ("blockY", IN),
            ("blockZ", IN),
            ("staticSharedMemory", IN),
            ("dynamicSharedMemory", IN),
            ("localMemoryPerThread", IN),
            ("localMemoryTotal", IN),
            ("gridId", IN),
            ("sharedMemoryExecuted", INT),
            ("graphNodeId", INT),
            ("sharedMemoryLimitConfig", INT),
        ]
    )
    if v26:
        kern += [
            (c, INT)
            for c in (
                "qmdBulkReleaseDone",
                "qmdPreexitDone",
                "qmdLastCtaDone",
                "graphId",
                "clusterX",
                "clusterY",
                "clusterZ",
                "clusterSchedulingPolicy",
                "maxPotentialClusterSize",
                "maxActiveClusters",
                "sharedMemoryRequestedPercentage",
            )
        ]
        kern += [("tensorSizeMinusOneElements", TN)]
    tabs = {
        "StringIds": [("id", IN + " PRIMARY KEY"), ("value", TN)],
        "TARGET_INFO_GPU": [
            ("vmId", IN),
            ("id", IN),
            ("name", T),
            ("busLocation", T),
            ("isDiscrete", INT),
            ("l2CacheSize", INT),
            ("totalMemory", INT),
            ("memoryBandwidth", INT),
            ("clockRate", INT),
            ("smCount", INT),
            ("pwGpuId", INT),
            ("uuid", T),
            ("luid", INT),
            ("chipName", T),
            ("cuDevice", INT),
            ("ctxswDevPath", T),
            ("ctrlDevPath", T),
            ("revision", INT),
            ("nodeMask", INT),
            ("constantMemory", INT),
            ("maxIPC", INT),
            ("maxRegistersPerBlock", INT),
            ("maxShmemPerBlock", INT),
            ("maxShmemPerBlockOptin", INT),
            ("maxShmemPerSm", INT),
            ("maxRegistersPerSm", INT),
            ("threadsPerWarp", INT),
            ("asyncEngines", INT),
            ("maxWarpsPerSm", INT),
            ("maxBlocksPerSm", INT),
            ("maxThreadsPerBlock", INT),
            ("maxBlockDimX", INT),
            ("maxBlockDimY", INT),
            ("maxBlockDimZ", INT),
            ("maxGridDimX", INT),
            ("maxGridDimY", INT),
            ("maxGridDimZ", INT),
            ("computeMajor", INT),
            ("computeMinor", INT),
            ("smMajor", INT),
            ("smMinor", INT),
        ],
        "TARGET_INFO_SYSTEM_ENV": [
            ("globalVid", INT if new else IN),
            ("devStateName", TN),
            ("name", TN),
            ("nameEnum", IN),
            ("value", TN),
        ],
        "TARGET_INFO_SESSION_START_TIME": [("utcEpochNs", INT), ("utcTime", T), ("localTime", T)]
        + ([("systemClockNs", INT)] if v26 else []),
        "ANALYSIS_DETAILS": [("globalVid", IN), ("duration", IN), ("startTime", IN), ("stopTime", IN)],
        "PROCESSES": [("globalPid", INT), ("pid", INT), ("name", T)],
        "ThreadNames": [("nameId", IN), ("priority", INT), ("globalTid", INT)],
        "CUPTI_ACTIVITY_KIND_KERNEL": kern,
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            ("start", IN),
            ("end", IN),
            ("eventClass", IN),
            ("globalTid", INT),
            ("correlationId", INT),
            ("nameId", IN),
            ("returnValue", IN),
            ("callchainId", INT),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [("start", IN), ("end", IN), ("deviceId", IN), ("contextId", IN)]
        + ([("greenContextId", INT)] if new else [])
        + [
            ("streamId", IN),
            ("correlationId", INT),
            ("globalPid", INT),
            ("bytes", IN),
            ("copyKind", IN),
            ("deprecatedSrcId", INT),
            ("srcKind", INT),
            ("dstKind", INT),
            ("srcDeviceId", INT),
            ("srcContextId", INT),
            ("dstDeviceId", INT),
            ("dstContextId", INT),
            ("migrationCause", INT),
            ("graphNodeId", INT),
            ("virtualAddress", INT),
        ]
        + ([("copyCount", INT)] if v26 else []),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            ("start", IN),
            ("end", IN),
            ("deviceId", IN),
            ("contextId", IN),
        ]
        + ([("greenContextId", INT)] if new else [])
        + [("streamId", IN), ("correlationId", INT), ("globalPid", INT)]
        + ([("deprecatedSyncType", INT)] if v26 else [])
        + [("syncType", IN), ("eventId", IN)]
        + ([("eventSyncId", INT)] if v26 else []),
        "NVTX_EVENTS": [
            ("start", IN),
            ("end", INT),
            ("eventType", IN),
            ("rangeId", INT),
            ("category", INT),
            ("color", INT),
            ("text", T),
            ("globalTid", INT),
            ("endGlobalTid", INT),
            ("textId", INT),
            ("domainId", INT),
            ("uint64Value", INT),
            ("int64Value", INT),
            ("doubleValue", R),
            ("uint32Value", INT),
            ("int32Value", INT),
            ("floatValue", R),
            ("jsonTextId", INT),
            ("jsonText", T),
        ]
        + ([("binaryData", T)] if v26 else []),
        "ENUM_NSYS_EVENT_TYPE": [("id", IN + " PRIMARY KEY"), ("name", T), ("label", T)],
        "ENUM_CUDA_MEMCPY_OPER": [("id", IN + " PRIMARY KEY"), ("name", T), ("label", T)],
        "ENUM_CUDA_MEM_KIND": [("id", IN + " PRIMARY KEY"), ("name", T), ("label", T)],
        ("META_DATA_EXPORT" if new else "EXPORT_META_DATA"): [("name", TN), ("value", T)],
    }
    if v26:
        tabs["TARGET_INFO_CUDA_DEVICE"] = [
            ("gpuId", INT),
            ("cudaId", IN),
            ("pid", IN),
            ("uuid", T),
            ("numMultiprocessors", INT),
        ]
    return tabs


class Strings(dict):
    def __missing__(self, s):
        self[s] = len(self)
        return self[s]


def generate(a):
    Path(a.out).unlink(missing_ok=True)
    new, v26 = a.schema != "2022.4", a.schema == "2026.2"
    db = sqlite3.connect(a.out, isolation_level=None)
    db.execute("PRAGMA journal_mode=OFF")
    db.execute("PRAGMA synchronous=OFF")
    tabs = tables(a.schema)
    for t, cols in tabs.items():
        db.execute(
            f"CREATE TABLE {t} ("
            + ", ".join(f'"{c}" {d}' if c == "end" else f"{c} {d}" for c, d in cols)
            + ")"
        )
    sid = Strings()
    for s in ("[Unknown]", "[kernel.kallsyms]", "[Max depth]"):
        sid[s]
    L = [(sid[n], sid[d], sid[f"_Z{len(n)}{n}v"], p, q, s) for n, d, p, q, s in LAYER]
    s_launch, s_graph, s_cpy, s_sync = (
        sid[x]
        for x in (
            "cudaLaunchKernel_v7000",
            "cudaGraphLaunch_v10000",
            "cudaMemcpyAsync_v3020",
            "cudaStreamSynchronize_v3020",
        )
    )
    idname = {v: k for k, v in sid.items()}
    rnd = random.Random(a.seed).random
    cols_k = len(tabs["CUPTI_ACTIVITY_KIND_KERNEL"])
    ins = {t: f"INSERT INTO {t} VALUES (" + ",".join("?" * len(c)) + ")" for t, c in tabs.items()}
    K, RT, MC, SY, NV = [], [], [], [], []
    gc = (None,) if new else ()
    k26 = (None, None, None, None, 0, 0, 0, 1, 0, 0, None, "[]") if v26 else ()
    n26 = (None,) if v26 else ()
    ops = [tuple("aten::" + n + "_" * q for q in range(a.op_ranges)) for n, *_ in LAYER]
    by_name, by_range, innermost, by_phase = {}, {}, {}, {}
    n_inst = {}

    def flush(force=False):
        for name, rows in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", K),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", RT),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", MC),
            ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", SY),
            ("NVTX_EVENTS", NV),
        ):
            if force or len(rows) > 50000:
                if a.disorder:  # as real exports: only roughly in time order
                    for j in range(0, len(rows) - a.disorder, a.disorder):
                        rows[j : j + a.disorder] = rows[j + a.disorder - 1 : j - 1 if j else None : -1]
                db.executemany(ins[name], rows)
                rows.clear()

    def nvtx(s, e, text, gtid=GTID):
        txt, tx = (None, sid[text]) if a.registered else (text, None)
        NV.append((s, e, PUSHPOP, None, None, None, txt, gtid, None, tx, 0) + (None,) * 8 + n26)
        n_inst[text] = n_inst.get(text, 0) + 1

    def tally(d, k, dur):
        r = d.setdefault(k, [0, 0])
        r[0] += 1
        r[1] += dur

    db.execute("BEGIN")
    t = 1_200_000_000
    gpu, corr, nk, ph = t, 500, 0, 0
    nmem = 0
    while nk < a.kernels:
        phase = "prefill" if ph % (a.decode_steps + 1) == 0 else "decode"
        ph += 1
        pre = phase == "prefill"
        p0 = t
        t += 1500
        graphed = a.graph_decode and not pre
        if graphed:
            corr += 1
            RT.append((t, t + 41000, 0, GTID, corr, s_graph, 0, None))
            g_ts, g_corr = t, corr
            t += 42000
        for layer in range(a.layers):
            if nk >= a.kernels:
                break
            lname = f"layer.{layer}"
            l0, sub, s0 = t, 0, t
            t += 300
            for i, (short, dem, man, dp, dd, sb) in enumerate(L):
                if nk >= a.kernels:
                    break
                dur = int((dp if pre else dd) * (0.92 + 0.16 * rnd()))
                if graphed:
                    start = max(gpu + 800, g_ts + 9000)
                    c, gn, rngs = g_corr, 4294967296 + layer * len(L) + i, (phase,)
                else:
                    if a.nvtx_depth > 2 and sb != sub:
                        if sub:
                            nvtx(s0, t, SUB[sub])
                        t += 200
                        sub, s0 = sb, t
                        t += 150
                    corr += 1
                    ld = 4200 + int(2600 * rnd())
                    t += 2500
                    for q, o in enumerate(ops[i]):  # one range per op around the launch, as emit_nvtx
                        nvtx(t + 100 * q, t + 100 * (2 * a.op_ranges - q) + ld + 300, o)
                    t += 100 * a.op_ranges
                    RT.append((t, t + ld, 0, GTID, corr, s_launch, 0, None))
                    start = max(gpu + 800, t + 5200)
                    t += ld + 900 + 100 * a.op_ranges
                    c, gn = corr, None
                    rngs = (
                        (phase, lname)[: a.nvtx_depth]
                        + ((SUB[sub],) if sub and a.nvtx_depth > 2 else ())
                        + ops[i]
                    )
                K.append(
                    (
                        start,
                        start + dur,
                        0,
                        1,
                        *gc,
                        7,
                        c,
                        GPID,
                        dem,
                        short,
                        man,
                        0,
                        0,
                        40,
                        (1 << 6 + i % 7) * (4 if pre else 1),
                        1,
                        1,
                        128 << i % 2,
                        1,
                        1,
                        0,
                        0,
                        0,
                        0,
                        nk + 1,
                        102400,
                        gn,
                        0,
                        *k26,
                    )
                )
                gpu = start + dur
                nk += 1
                tally(by_name, dem, dur)
                tally(by_phase, phase, dur)
                tally(innermost, rngs[-1] if rngs else "", dur)
                for r in rngs:
                    tally(by_range, r + "\t" + idname[dem], dur)
            if not graphed:
                if sub and a.nvtx_depth > 2:
                    nvtx(s0, t, SUB[sub])
                    t += 200
                if a.nvtx_depth > 1:
                    nvtx(l0, t, lname)
                    t += 200
            flush()
        corr += 1
        RT.append((t, t + 6000, 0, GTID, corr, s_cpy, 0, None))
        start = max(gpu + 800, t + 5000)
        MC.append(
            (start, start + 1600, 0, 1)
            + gc
            + (7, corr, GPID, 8, 2, None, 2, 1)
            + (None,) * 7
            + ((1,) if v26 else ())
        )
        nmem += 1
        gpu = start + 1600
        corr += 1
        t2 = t + 6500
        t = max(gpu + 2000, t2 + 1000)
        RT.append((t2, t, 0, GTID, corr, s_sync, 0, None))
        SY.append((t2, t, 0, 1, *gc, 7, corr, GPID, *n26, 3, 0, *n26))
        t += 1500
        if a.nvtx_depth > 0:
            nvtx(p0, t, phase)
        nvtx(p0 + 700, t + 9000, "tokenizer", GTID2)  # another thread, overlapping: must not be matched
        t += 20000
    flush(True)
    db.executemany(
        ins["TARGET_INFO_GPU"],
        [
            (
                VM,
                0,
                "NVIDIA A100-SXM4-80GB",
                "0000:07:00.0",
                1,
                41943040,
                85899345920,
                2039000000000,
                1410000000,
                108,
                0,
                "0",
                None,
                "GA100",
                0,
                "",
                "",
                161,
                1,
                65536,
                4,
                65536,
                49152,
                166912,
                167936,
                65536,
                32,
                3,
                64,
                32,
                1024,
                1024,
                1024,
                64,
                2147483647,
                65535,
                65535,
                8,
                0,
                8,
                0,
            )
        ],
    )
    if v26:
        db.execute(ins["TARGET_INFO_CUDA_DEVICE"], (0, 0, PID, None, 108))
    db.executemany(
        ins["TARGET_INFO_SYSTEM_ENV"],
        [(VM, "Local (CLI)", "CpuCores", 1, "2"), (VM, "Local (CLI)", "Hostname", 201, "gen")],
    )
    db.execute(
        ins["TARGET_INFO_SESSION_START_TIME"],
        (1790857026000000000, "2026-10-01T12:17:06", "2026-10-01T12:17:06") + ((35255823190,) if v26 else ()),
    )
    db.execute(ins["ANALYSIS_DETAILS"], (VM, t, 0, t))
    db.execute(ins["PROCESSES"], (GPID, PID, "/usr/bin/python3"))
    db.executemany(ins["ThreadNames"], [(sid["python"], 20, GTID), (sid["tokenizer"], 20, GTID2)])
    db.execute(
        "INSERT INTO NVTX_EVENTS VALUES (1100000000,NULL,?,NULL,NULL,NULL,'default',?,NULL,NULL,1"
        + ",NULL" * (8 + v26)
        + ")",
        (DOMAIN_CREATE, GTID),
    )
    db.executemany(
        ins["ENUM_NSYS_EVENT_TYPE"],
        [
            (59, "NvtxPushPopRange", "NVTX Push/Pop Range"),
            (60, "NvtxStartEndRange", "NVTX Start/End Range"),
            (75, "NvtxDomainCreate", "NVTX Domain Create"),
        ],
    )
    db.executemany(
        ins["ENUM_CUDA_MEMCPY_OPER"],
        [
            (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
            (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
            (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        ],
    )
    db.executemany(
        ins["ENUM_CUDA_MEM_KIND"],
        [
            (0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"),
            (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
            (2, "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
        ],
    )
    ver = {
        "2022.4": ("2022.4.2.1", "3.0.0"),
        "2024.2": ("2024.2.1.0", "3.11.1"),
        "2026.2": ("2026.2.1.0", "3.25.0"),
    }[a.schema]
    db.executemany(
        ins["META_DATA_EXPORT" if new else "EXPORT_META_DATA"],
        [
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
            ("EXPORT_PRODUCT_VERSION", ver[0]),
            ("EXPORT_SCHEMA_VERSION", ver[1]),
            ("EXPORT_SCHEMA_VERSION_MAJOR", ver[1].split(".")[0]),
            ("EXPORT_SCHEMA_VERSION_MINOR", ver[1].split(".")[1]),
            ("EXPORT_SCHEMA_VERSION_MICRO", "0"),
        ],
    )
    db.executemany(ins["StringIds"], ((v, k) for k, v in sid.items()))
    db.execute("COMMIT")
    db.close()
    truth = {
        "kernels": nk,
        "kernel_ns": sum(r[1] for r in by_name.values()),
        "memcpy": nmem,
        "phase_instances": ph,
        "range_instances": n_inst,
        "by_name": {idname[k]: v for k, v in by_name.items()},
        "by_phase": by_phase,
        "by_innermost": innermost,
        "by_range_kernel": by_range,
        "args": vars(a),
    }
    with Path(a.out + ".truth.json").open("w") as f:
        json.dump(truth, f, indent=1, sort_keys=True)
    print(
        json.dumps(
            {
                "out": a.out,
                "kernels": nk,
                "runtime_calls": corr - 500,
                "nvtx": sum(n_inst.values()),
                "bytes": Path(a.out).stat().st_size,
                "kernel_cols": cols_k,
            }
        )
    )


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--kernels", type=lambda v: int(float(v)), default=100000)
    ap.add_argument("--layers", type=int, default=32)
    ap.add_argument("--decode-steps", type=int, default=31, help="decode steps after each prefill")
    ap.add_argument(
        "--nvtx-depth", type=int, default=3, choices=(0, 1, 2, 3), help="1 phase, 2 +layer, 3 +attn/mlp"
    )
    ap.add_argument(
        "--op-ranges", type=int, default=0, help="nested ranges around every launch (emit_nvtx: about 4)"
    )
    ap.add_argument("--registered", action="store_true", help="range names as textId instead of text")
    ap.add_argument("--graph-decode", action="store_true", help="decode steps are one cudaGraphLaunch each")
    ap.add_argument("--disorder", type=int, default=0, help="reverse rows in blocks of this many")
    ap.add_argument("--schema", choices=("2022.4", "2024.2", "2026.2"), default="2022.4")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--out", required=True)
    generate(ap.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
