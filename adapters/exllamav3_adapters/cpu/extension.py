"""What stands in for exllamav3's compiled extension on a CPU.

It holds every function that the scheduler, its tiers, the samplers and the filters call. Any other name is there
too, since exllamav3 looks some up while it is imported; calling such a one raises `MissingExtensionFunction`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from exllamav3_adapters.cpu import page_kernels, penalty_kernels, sampling_kernels, string_match, suffix_automaton


class MissingExtensionFunction(RuntimeError):
    """exllamav3 called a compiled function that has no counterpart on the CPU."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"exllamav3's compiled function {name!r} does not exist in the CPU engine. "
            "Turn off the option that needs it, or use engine: cuda."
        )
        self.name = name


class _Missing:
    """Safe to look up, compare and store; raises once it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingExtensionFunction(self._name)


class CpuExtension:
    """`exllamav3.ext.exllamav3_ext` in torch and numpy. Functions keep the names and arguments of the extension."""

    # Sizes of scratch that callers allocate and nobody here uses.
    FUSED_SAMPLER_MAX_BLOCKS = 1
    FUSED_SAMPLER_HIST_STRIDE = 1

    BC_SAM = suffix_automaton.BC_SAM

    generator_stage_decode = staticmethod(page_kernels.generator_stage_decode)
    cache_rotate = staticmethod(page_kernels.cache_rotate)
    cuda_host_register = staticmethod(page_kernels.cuda_host_register)
    cuda_host_unregister = staticmethod(page_kernels.cuda_host_unregister)

    count_match_tensor = staticmethod(string_match.count_match_tensor)
    partial_strings_match = staticmethod(string_match.partial_strings_match)

    fused_sampler = staticmethod(sampling_kernels.fused_sampler)
    gumbel_noise_f16 = staticmethod(sampling_kernels.gumbel_noise_f16)
    gumbel_noise_f32 = staticmethod(sampling_kernels.gumbel_noise_f32)
    gumbel_noise_log = staticmethod(sampling_kernels.gumbel_noise_log)
    adaptivep_gumbel_noise_f32 = staticmethod(sampling_kernels.adaptivep_gumbel_noise_f32)
    apply_logit_bitmask = staticmethod(sampling_kernels.apply_logit_bitmask)

    apply_rep_pens = staticmethod(penalty_kernels.apply_rep_pens)
    apply_pres_freq_pens = staticmethod(penalty_kernels.apply_pres_freq_pens)
    dry_penalty = staticmethod(penalty_kernels.dry_penalty)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(name)
