"""The long runs: power cuts, fuzzers, simulation and properties, in slices that a night can stop and continue with."""
