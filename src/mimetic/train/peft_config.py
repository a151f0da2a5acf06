"""Settings of adapters, `--peft.*` (spec/training.md 2.6, spec/smolvla.md 13)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.fields import setting
from mimetic.policies.config import PolicyConfig

INITS = ("true", "gaussian")


@dataclass(frozen=True, kw_only=True)
class PeftConfig:
    """Adapters (`--peft.*`)."""

    target_modules: list[str] | str | None = setting(
        None,
        "Linear layers that get an adapter: a regular expression for whole names, a list of names or their ends, or "
        "all-linear; null takes the policy's own choice",
    )
    full_training_modules: list[str] | None = setting(
        None, "Modules, by names or their ends, that are trained fully and stored with the adapter"
    )
    method_type: str = setting("LORA", "Kind of adapter; LORA is the one that mimetic builds")
    init_type: str | None = setting(
        None, "First values: true or null for uniform ones, gaussian; the policy starts unchanged in any case"
    )
    r: int = setting(16, "Rank of the adapters")
    lora_alpha: int | None = setting(None, "Scale: what the adapters add is multiplied by lora_alpha / r; null is 8")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        if self.method_type.upper() != "LORA":
            problems.append(
                f"`--peft.method_type={self.method_type}`: mimetic builds LORA only; leave the flag out, or train this "
                "kind of adapter with LeRobot"
            )
        if self.init_type is not None and self.init_type.lower() not in INITS:
            problems.append(
                f"`--peft.init_type={self.init_type}`: mimetic starts adapters with true (uniform) or gaussian values"
            )
        if self.r < 1:
            problems.append(f"`--peft.r={self.r}` must be at least 1")
        if self.lora_alpha is not None and self.lora_alpha < 1:
            problems.append(f"`--peft.lora_alpha={self.lora_alpha}` must be at least 1")
        if self.target_modules is not None and not self.target_modules:
            problems.append("`--peft.target_modules` names no module; null takes the policy's own choice")
        return problems

    def problems_with(self, policy: PolicyConfig) -> list[str]:
        """Why a new adapter cannot be put on a policy with these settings."""
        if policy.pretrained_path is None:
            return [
                "`--peft.*` trains an adapter of a trained policy, and there is none: "
                "name it with `--policy.path` (a folder, a run or a hub id)"
            ]
        if self.target_modules is None and policy.lora_targets is None:
            return [
                f"policy `{policy.type_name}` has no layers of its own choice for adapters: name them, such as "
                "`--peft.target_modules='[linear1, linear2]'`"
            ]
        return []
