"""Records in, numbers and pages out. This room imports nothing of the rest but `dflash.errors`."""
