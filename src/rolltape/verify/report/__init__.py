"""What a comparison has to say: as a sentence, as JSON, as a page, for continuous integration."""
