"""What runs in helper processes: builder, zygote, runner. Standard library only."""
