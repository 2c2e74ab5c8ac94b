"""An out-of-tree SGLang platform under which the DFLASH worker runs on a plain CPU (a test fixture)."""


def activate():
    return "sglang_cpu_native.platform:CpuNativePlatform"
