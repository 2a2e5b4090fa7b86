#include "tools/guide/peer_script.h"

namespace regard::guide {

const char* peer_script() {
  return R"py(
import json, statistics, sys, time

def answer(**words):
    print(json.dumps(words), flush=True)

try:
    import torch
    torch.set_num_threads(int(sys.argv[1]))
    attend = torch.nn.functional.scaled_dot_product_attention
    types = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
except BaseException as error:
    answer(error=f"{type(error).__name__}: {error}")
    sys.exit(1)
answer(version="torch " + torch.__version__)

def make(p):
    torch.manual_seed(0)
    def tensor(heads, rows):
        x = torch.randn(p["b"], heads, rows, p["d"]).to(types[p["dtype"]])
        return x.requires_grad_(p["grad"])
    q, k, v = tensor(p["hq"], p["sq"]), tensor(p["hkv"], p["skv"]), tensor(p["hkv"], p["skv"])
    options = {"is_causal": p["causal"], "enable_gqa": p["hq"] != p["hkv"]}
    if not p["grad"]:
        return lambda: attend(q, k, v, **options)
    out = attend(q, k, v, **options)
    d_out = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

calls = {}
for line in sys.stdin:
    try:
        problem = json.loads(line)
        torch.set_grad_enabled(problem["grad"])
        if line not in calls:
            calls[line] = make(problem)
        call = calls[line]
        call()
        times, end = [], time.perf_counter() + 0.02
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        answer(seconds=statistics.median(times))
    except Exception as error:
        answer(error=str(error).strip().splitlines()[0] if str(error).strip() else repr(error))
)py";
}

}  // namespace regard::guide
