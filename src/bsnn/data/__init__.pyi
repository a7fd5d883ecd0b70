from bsnn.data import audio as audio, events as events
from bsnn.data.augment import Augmentation as Augmentation
from bsnn.data.bundled import digits as digits
from bsnn.data.cache import cache_folder as cache_folder
from bsnn.data.cifar import cifar10 as cifar10, cifar100 as cifar100
from bsnn.data.dataset import (
    ArrayDataset as ArrayDataset,
    Dataset as Dataset,
    FileDataset as FileDataset,
    measure as measure,
)
from bsnn.data.description import contact_sheet as contact_sheet, describe as describe
from bsnn.data.downloads import download as download
from bsnn.data.event_sets import dvs_cifar10 as dvs_cifar10, nmnist as nmnist
from bsnn.data.finder import find as find, load as load
from bsnn.data.folders import folder as folder
from bsnn.data.idx import fashion_mnist as fashion_mnist, mnist as mnist
from bsnn.data.images import imagenet as imagenet
from bsnn.data.loader import Loader as Loader
from bsnn.data.sounds import SoundAugmentation as SoundAugmentation, augmented_sounds as augmented_sounds
from bsnn.data.spec import DataSpec as DataSpec
from bsnn.data.speech import speech_commands as speech_commands
