"""Complete programs that use Rolltape, to be read and to be run."""
