#include "places.h"

#include <iterator>

namespace xpu_sim::rt::strict {

Place Places::of(Site site) {
  Place& recent = recent_[static_cast<size_t>(site.line) % std::size(recent_)];
  const auto same = [&](const Site& s) { return s.line == site.line && s.file == site.file; };
  if (recent && same(sites_[recent & ~kSite])) return recent;
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (same(sites_[i])) return recent = kSite | static_cast<Place>(i);
  }
  sites_.push_back(site);
  return recent = kSite | static_cast<Place>(sites_.size() - 1);
}

Location Places::locate(Place place) const {
  if (!(place & kSite)) return rt::locate(reinterpret_cast<const void*>(base_ + place - 1));
  const Site site = sites_[place & ~kSite];
  Location where;
  if (site.file) where.file = site.file;
  where.line = site.line;
  return where;
}

}  // namespace xpu_sim::rt::strict
