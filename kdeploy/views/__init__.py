"""Each verb's result as people see it, and as the JSON envelope carries it where that is not the result itself."""
