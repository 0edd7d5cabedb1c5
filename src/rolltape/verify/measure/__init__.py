"""How far two values or arrays are apart, and the verdict on that."""
