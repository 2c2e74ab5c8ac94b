"""The gate: two runs -> a verdict with its reason for every gated quantity of every cell. See METHODOLOGY.md."""
