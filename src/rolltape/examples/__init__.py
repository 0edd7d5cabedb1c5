"""Complete programs that use Rolltape, to read and to run."""
