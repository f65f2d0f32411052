"""Things that a YAML file describes, each figure with its provenance: shipped by name, or a file of one's own."""

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr

from cxlemu.errors import ConfigError
from cxlemu.suggest import with_choices
from cxlemu.topology.document import Document, shown
from cxlemu.topology.fields import Model, validated
from cxlemu.topology.hardware import with_hardware
from cxlemu.topology.provenance import Provenances, take_provenance, with_provenance


class Described(Model):
    """A kind of file: its ``noun`` in errors, and the ``folder`` of those that come with cxlemu."""

    noun: ClassVar[str]
    folder: ClassVar[Path]
    _provenance: Provenances = PrivateAttr(default_factory=dict)

    @property
    def provenance(self) -> Provenances:
        """The origin of each figure, by its key in the file."""
        return self._provenance

    def document(self) -> dict[str, Any]:
        """Return every value with its provenance, as a file states it."""
        return with_provenance(self.model_dump(mode="json", exclude_none=True), self._provenance)

    def varied(self, **values: Any) -> Self:
        """Return a copy with other values, which have no provenance."""
        other = self.model_copy(update=values)
        other._provenance = {key: standing for key, standing in self._provenance.items() if key[0] not in values}
        return other

    @classmethod
    def shipped(cls) -> dict[str, Path]:
        """List the files that come with cxlemu: name without ``.yaml`` -> file, in alphabetical order."""
        return {path.stem: path for path in sorted(cls.folder.glob("*.yaml"))}

    @classmethod
    def load(cls, path_or_name: str | Path) -> Self:
        """Read a file, or a shipped one by its name."""
        wanted, shipped = str(path_or_name), cls.shipped()
        path = shipped.get(wanted.removesuffix(".yaml"), Path(path_or_name))
        try:
            exists = path.exists()
        except OSError:  # a name that no file can have, such as one that is too long
            exists = False
        if not exists:
            raise ConfigError(
                with_choices(f"{shown(wanted)} is neither a file nor a shipped {cls.noun}", wanted, shipped, " ({})")
            )
        document = Document.read(path, cls.noun)
        with_hardware(document)
        data, provenance = take_provenance(document)
        made = validated(cls, document, data)
        made._provenance = provenance
        return made
