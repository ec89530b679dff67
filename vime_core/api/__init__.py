"""ABCs of the objects that do the work, and the values they exchange. Imports nothing heavy: torch only for typing."""
